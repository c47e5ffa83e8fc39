"""The methods of `SummaryWriter` that write records of TensorBoard's plugins."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

from flambeau.tensor.tensor import Tensor
from flambeau.utils.tensorboard import summaries


def to_array(value: Any) -> Any:
    """Return a tensor's elements, or another value, as an array."""
    return np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)


class PluginWriter:
    """The methods of a `SummaryWriter` that TensorBoard's plugins show. All take `global_step`, the training step, and
    `walltime`, seconds since 1970, now without it.
    """

    log_dir: str

    def _write(self, value: Any, step: Any, walltime: float | None) -> None:
        """Write a value of a summary, or a list of them."""
        raise NotImplementedError

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Write the hyperparameters and the results of a run, to a separate folder.

        Args:
            hparam_dict: Name -> number, string, bool or tensor of one element.
            metric_dict: Name -> number.
            hparam_domain_discrete: Name of a hyperparameter -> its possible values.
            run_name: The name of the folder; the time without it.
            global_step: The training step.

        Raises:
            TypeError: If an argument is not a dict.
            ValueError: If a hyperparameter is of another type.
        """
        if type(hparam_dict) is not dict or type(metric_dict) is not dict:
            raise TypeError("hparam_dict and metric_dict should be dictionary.")
        values = summaries.build_hparams(hparam_dict, metric_dict, hparam_domain_discrete)
        folder = os.path.join(self.log_dir, run_name or str(time.time()))
        with type(self)(log_dir=folder) as writer:  # type: ignore[call-arg, attr-defined]
            for value in values:
                writer._write(value, global_step, None)
            for name, metric in metric_dict.items():
                writer.add_scalar(name, metric, global_step)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Write a histogram of counted values.

        Args:
            tag: Its name.
            min, max, num, sum, sum_squares: Properties of the values.
            bucket_limits: The upper limit of each bin.
            bucket_counts: The number of values in each bin.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.

        Raises:
            ValueError: If there are more limits or more counts.
        """
        if len(bucket_limits) != len(bucket_counts):
            raise ValueError("len(bucket_limits) != len(bucket_counts), see the document.")
        histogram = HistogramProto(
            min=min, max=max, num=num, sum=sum, sum_squares=sum_squares, bucket_limit=to_array(bucket_limits).tolist(),
            bucket=to_array(bucket_counts).tolist(),
        )  # fmt: skip
        self._write(Summary.Value(tag=tag, histo=histogram), global_step, walltime)

    def add_tensor(
        self, tag: str, tensor: Tensor, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Write a tensor.

        Raises:
            ValueError: If TensorBoard has no such dtype.
        """
        self._write(summaries.build_tensor_value(tag, tensor), global_step, walltime)

    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: Any = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Write one channel of audio, values from -1 to 1.

        Raises:
            AssertionError: If there are several channels.
        """
        value = summaries.build_audio(tag, to_array(snd_tensor), sample_rate)
        self._write(value, global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: Any = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Write a picture of a figure of Matplotlib, or of a list of figures.

        Args:
            tag: Its name.
            figure: The figure or the list.
            global_step: The training step.
            close: Close the figures afterwards.
            walltime: Seconds since 1970; now without it.
        """
        picture = summaries.draw_figures(figure, close)
        order = "CHW" if picture.ndim == 3 else "NCHW"
        self.add_image(tag, picture, global_step, walltime, order)  # type: ignore[attr-defined]

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Write images in a grid; the arguments are those of `add_image`."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)  # type: ignore[attr-defined]

    def add_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        global_step: Any = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Write a precision-recall curve.

        Args:
            tag: Its name.
            labels: 1 for true examples, else 0.
            predictions: The probability of each example.
            global_step: The training step.
            num_thresholds: The number of thresholds, at most 127.
            weights: Weights of the examples.
            walltime: Seconds since 1970; now without it.
        """
        weights = None if weights is None else to_array(weights)
        curve = summaries.compute_pr_curve(to_array(labels), to_array(predictions), num_thresholds, weights)
        self._write(summaries.build_pr_curve(tag, curve, num_thresholds), global_step, walltime)

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: Any,
        false_positive_counts: Any,
        true_negative_counts: Any,
        false_negative_counts: Any,
        precision: Any,
        recall: Any,
        global_step: Any = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Write a precision-recall curve of counted examples, an array of one number for each threshold."""
        counts = true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts
        curve = np.stack([to_array(part) for part in (*counts, precision, recall)])
        self._write(summaries.build_pr_curve(tag, curve, num_thresholds), global_step, walltime)

    def add_custom_scalars(self, layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        """Arrange scalars in charts.

        Args:
            layout: Category -> title -> ["Multiline", tags] or ["Margin", [value, lower, upper]].
        """
        self._write(summaries.build_chart_layout(layout), None, None)

    def add_custom_scalars_multilinechart(
        self, tags: list[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Draw scalars in one chart."""
        self.add_custom_scalars({category: {title: ["Multiline", tags]}})

    def add_custom_scalars_marginchart(
        self, tags: list[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Draw a scalar between two others.

        Raises:
            AssertionError: If there are not three tags.
        """
        self.add_custom_scalars({category: {title: ["Margin", tags]}})

    def add_mesh(
        self,
        tag: str,
        vertices: Any,
        colors: Any = None,
        faces: Any = None,
        config_dict: Any = None,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Write a mesh or a cloud of points.

        Args:
            tag: Its name.
            vertices: Points, (batch, points, 3).
            colors: Their colors, 0 to 255, (batch, points, 3).
            faces: The points of each triangle, (batch, triangles, 3).
            config_dict: Names of ThreeJS classes and their settings.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.
        """
        parts = {"VERTEX": vertices, "FACE": faces, "COLOR": colors}
        arrays = {name: None if part is None else to_array(part) for name, part in parts.items()}
        self._write(summaries.build_mesh(tag, arrays, config_dict), global_step, walltime)

    def add_embedding(
        self,
        mat: Any,
        metadata: Any = None,
        label_img: Any = None,
        global_step: int | None = None,
        tag: str = "default",
        metadata_header: Any = None,
    ) -> None:
        """Write rows of a matrix for TensorBoard's projector.

        Args:
            mat: The matrix.
            metadata: The label of each row, or its labels if there is a `metadata_header`.
            label_img: An image of each row, (rows, C, H, W).
            global_step: The training step.
            tag: The name of the embedding.
            metadata_header: The names of the labels.

        Raises:
            AssertionError: If `mat` is not a matrix, or labels or images are not one for each row.
        """
        matrix = to_array(mat)
        images = None if label_img is None else to_array(label_img)
        if matrix.ndim != 2:
            raise AssertionError("mat should be 2D, where mat.size(0) is the number of data points")
        if metadata is not None and len(metadata) != len(matrix):
            raise AssertionError("#labels should equal with #data points")
        if images is not None and len(images) != len(matrix):
            raise AssertionError("#images should equal with #data points")
        step = str(global_step or 0).zfill(5)
        coded = "".join([f"%{ord(c):02x}" if c in "%/\\" else c for c in tag])
        summaries.write_embedding(
            self.log_dir, f"{step}/{coded}", f"{tag}:{step}", matrix, metadata, images, metadata_header
        )
