"""`SummaryWriter` and `FileWriter` over the event files of the package `tensorboard`."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from flambeau.core.errors import NotSupportedError
from flambeau.utils.tensorboard.plugin_writer import PluginWriter, to_array
from flambeau.utils.tensorboard.summaries import arrange_in_grid

_ABSENT = ("add_graph", "add_image_with_boxes", "add_onnx_graph", "add_video")


class FileWriter:
    """A writer of events to one file.

    Args:
        log_dir: The folder.
        max_queue: The number of events after which the file is written.
        flush_secs: The seconds after which it is written.
        filename_suffix: The end of the file's name.
    """

    def __init__(
        self, log_dir: str, max_queue: int = 10, flush_secs: int = 120, filename_suffix: str = ""
    ) -> None:
        self.event_writer = EventFileWriter(str(log_dir), max_queue, flush_secs, filename_suffix)

    def get_logdir(self) -> str:
        """Return the folder."""
        folder: str = self.event_writer.get_logdir()
        return folder

    def add_event(self, event: Any, step: Any = None, walltime: float | None = None) -> None:
        """Write an event.

        Args:
            event: The event, which gets the time and the step.
            step: The training step.
            walltime: Seconds since 1970; now without it.
        """
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        self.event_writer.add_event(event)

    def add_summary(self, summary: Any, global_step: Any = None, walltime: float | None = None) -> None:
        """Write a summary. The arguments are those of `add_event`."""
        self.add_event(Event(summary=summary), global_step, walltime)

    def flush(self) -> None:
        """Write events that wait."""
        self.event_writer.flush()

    def close(self) -> None:
        """Write events that wait and close the file."""
        self.event_writer.close()


class SummaryWriter(PluginWriter):
    """A writer of scalars, histograms, texts, images and records of plugins for TensorBoard.

    Args:
        log_dir: The folder; `runs/<time>_<host>` without it.
        comment: The end of that name.
        purge_step: The step from which TensorBoard discards older events.
        max_queue: The number of events after which the file is written.
        flush_secs: The seconds after which it is written.
        filename_suffix: The end of the file's name.
    """

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        if not log_dir:
            now = datetime.now().strftime("%b%d_%H-%M-%S")
            log_dir = os.path.join("runs", f"{now}_{socket.gethostname()}{comment}")
        self.log_dir = str(log_dir)
        self.purge_step = purge_step
        self._arguments = (max_queue, flush_secs, filename_suffix)
        self.file_writer: FileWriter | None = None
        self.all_writers: dict[str, FileWriter] = {}
        self._get_file_writer()

    def _get_file_writer(self) -> FileWriter:
        if self.file_writer is None:
            self.file_writer = FileWriter(self.log_dir, *self._arguments)
            self.all_writers[self.log_dir] = self.file_writer
            if self.purge_step is not None:
                self.file_writer.add_event(Event(step=self.purge_step, file_version="brain.Event:2"))
                self.purge_step = None
        return self.file_writer

    def get_logdir(self) -> str:
        """Return the folder."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Write a number.

        Args:
            tag: Its name.
            scalar_value: A number, or a tensor or array of one element.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.
            new_style: True if it is written as a tensor.
            double_precision: True if that is of float64.
        """
        number = (
            float(to_array(scalar_value).reshape(-1)[0]) if np.size(to_array(scalar_value)) == 1 else None
        )
        if number is None:
            raise AssertionError("scalar should be 0D")
        if new_style:
            kind = {"double_val": [number], "dtype": "DT_DOUBLE"} if double_precision else {
                "float_val": [number], "dtype": "DT_FLOAT"
            }  # fmt: skip
            data = SummaryMetadata.PluginData(plugin_name="scalars")
            value = Summary.Value(
                tag=tag, tensor=TensorProto(**kind), metadata=SummaryMetadata(plugin_data=data)
            )
        else:
            value = Summary.Value(tag=tag, simple_value=number)
        self._write(value, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Write numbers that are drawn in one diagram, each to its own folder.

        Args:
            main_tag: The name of the diagram.
            tag_scalar_dict: Name -> number.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.
        """
        walltime = time.time() if walltime is None else walltime
        for tag, number in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, main_tag.replace("/", "_") + "_" + tag)
            writer = self.all_writers.setdefault(folder, None) or FileWriter(folder, *self._arguments)  # type: ignore[arg-type]
            self.all_writers[folder] = writer
            value = Summary.Value(tag=main_tag, simple_value=float(to_array(number).reshape(-1)[0]))
            writer.add_summary(Summary(value=[value]), global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Any = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Write a histogram of values.

        Args:
            tag: Its name.
            values: A tensor or array.
            global_step: The training step.
            bins: "tensorflow" for exponentially growing bins, or what `numpy.histogram` takes.
            walltime: Seconds since 1970; now without it.
            max_bins: The largest number of bins.

        Raises:
            ValueError: If there are no values.
        """
        array = to_array(values).astype(np.float64).reshape(-1)
        if array.size == 0:
            raise ValueError("The input has no element.")
        edges = _exponential_edges() if isinstance(bins, str) and bins == "tensorflow" else bins
        counts, limits = np.histogram(array, bins=edges)
        if max_bins is not None and len(counts) > max_bins:
            step = len(counts) // max_bins
            counts = np.add.reduceat(counts, np.arange(0, len(counts), step))
            limits = np.append(limits[:-1:step], limits[-1])
        filled = np.flatnonzero(counts)
        first, last = int(filled[0]), int(filled[-1]) + 1
        shown = np.concatenate([[0], counts[first:last]])  # an empty bin below the first
        histogram = HistogramProto(
            min=array.min(), max=array.max(), num=array.size, sum=array.sum(), sum_squares=array.dot(array),
            bucket_limit=limits[first : last + 1].tolist(), bucket=shown.tolist(),
        )  # fmt: skip
        self._write(Summary.Value(tag=tag, histo=histogram), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Write a text.

        Args:
            tag: Its name.
            text_string: The text.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.
        """
        data = SummaryMetadata.PluginData(plugin_name="text", content=b"")
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        text = TensorProto(dtype="DT_STRING", string_val=[text_string.encode()], tensor_shape=shape)
        value = Summary.Value(
            tag=f"{tag}/text_summary", metadata=SummaryMetadata(plugin_data=data), tensor=text
        )
        self._write(value, global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Write an image, which the package `pillow` encodes.

        Args:
            tag: Its name.
            img_tensor: Values from 0 to 1, or uint8 from 0 to 255. Several images are arranged in a grid.
            global_step: The training step.
            walltime: Seconds since 1970; now without it.
            dataformats: The order of dimensions, such as "CHW", "HWC" or "HW".
        """
        from PIL import Image  # a program without images does not need it

        array = to_array(img_tensor)
        letters = dataformats.upper()
        if letters == "HW":
            array, letters = array[None], "CHW"
        if letters.find("N") >= 0:
            array = arrange_in_grid(array.transpose([letters.index(letter) for letter in "NCHW"]))
            letters = "CHW"
        array = array.transpose([letters.index(letter) for letter in "HWC"])
        pixels = array if array.dtype == np.uint8 else (array * 255).clip(0, 255).astype(np.uint8)
        pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="PNG")
        height, width, channels = pixels.shape
        image = Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=file.getvalue()
        )
        self._write(Summary.Value(tag=tag, image=image), global_step, walltime)

    def _write(self, value: Any, step: Any, walltime: float | None) -> None:
        values = value if isinstance(value, list) else [value]
        self._get_file_writer().add_summary(Summary(value=values), step, walltime)

    def flush(self) -> None:
        """Write events that wait."""
        for writer in self.all_writers.values():
            writer.flush()

    def close(self) -> None:
        """Write events that wait and close the files."""
        for writer in self.all_writers.values():
            writer.flush()
            writer.close()
        self.file_writer = None
        self.all_writers = {}

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ABSENT:
            raise NotSupportedError(
                f"SummaryWriter.{name}: Flambeau writes no graphs, videos and boxes. Write images with add_image, and "
                "show a model with print or torch.fx."
            )
        raise AttributeError(f"'SummaryWriter' object has no attribute '{name}'")

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _exponential_edges() -> Any:
    """Return TensorBoard's default edges: 1e-12 times powers of 1.1, both signs, and zero."""
    edges, value = [], 1e-12
    while value < 1e20:
        edges.append(value)
        value *= 1.1
    return np.array([-edge for edge in reversed(edges)] + [0.0] + edges)
