"""Records of TensorBoard's plugins: hyperparameters, curves, charts, meshes, embeddings, audio, grids of images."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import struct_pb2, text_format
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.mesh import metadata as mesh_metadata
from tensorboard.plugins.mesh.plugin_data_pb2 import MeshPluginData
from tensorboard.plugins.pr_curve.plugin_data_pb2 import PrCurvePluginData
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from flambeau.core import dtype as dtypes
from flambeau.core.files import replace_file
from flambeau.tensor.tensor import Tensor

_MOST_THRESHOLDS = 127  # of precision-recall curves: the plugin's format holds no more
_LEAST_COUNT = 1e-7  # in place of 0 as a divisor


def build_plugin_value(tag: str, plugin: str, content: bytes, tensor: Any = None, **metadata: str) -> Any:
    """Return a value of a summary that a plugin of TensorBoard shows.

    Args:
        tag: The value's name.
        plugin: The plugin's name.
        content: The plugin's data.
        tensor: A TensorProto.
        metadata: Fields of the metadata, such as `display_name`.
    """
    data = SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data, **metadata), tensor=tensor)


def build_tensor(kind: str, field: str, values: Any, shape: Sequence[int]) -> Any:
    """Return a TensorProto of values in row-major order.

    Args:
        kind: The dtype, such as "DT_FLOAT".
        field: The field of the values, such as "float_val".
        values: The values.
        shape: The shape.
    """
    dims = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in shape])
    return TensorProto(dtype=kind, tensor_shape=dims, **{field: values})


# -- hyperparameters ------------------------------------------------------------------------------------


def build_hparams(hparams: Any, metrics: Any, domains: Any) -> list[Any]:
    """Return the values that describe an experiment, the start of a session and its end.

    Args:
        hparams: Name -> number, string, bool or tensor of one element. Others that are None are left out.
        metrics: Name -> number.
        domains: Name of a hyperparameter -> its possible values; None for none.

    Raises:
        TypeError: If one of these is not a dict, or a domain does not fit its hyperparameter.
        ValueError: If a hyperparameter is of another type.
    """
    domains = domains or {}
    for name, value in (
        ("hparam_dict", hparams),
        ("metric_dict", metrics),
        ("hparam_domain_discrete", domains),
    ):
        if not isinstance(value, dict):
            raise TypeError(f"parameter: {name} should be a dictionary, nothing logged.")
    for name, values in domains.items():
        if name not in hparams or not isinstance(values, list) or not _are_of(values, type(hparams[name])):
            raise TypeError(
                f"parameter: hparam_domain_discrete[{name}] should be a list of same type as hparam_dict[{name}]."
            )
    start = plugin_data_pb2.SessionStartInfo()
    infos = []
    for name, value in hparams.items():
        if value is not None:
            kind, field = _field_of(value)
            setattr(start.hparams[name], field, float(value) if isinstance(value, Tensor) else value)
            domain = None
            if name in domains and not isinstance(value, Tensor):
                listed = [struct_pb2.Value(**{field: each}) for each in domains[name]]
                domain = struct_pb2.ListValue(values=listed)
            code = api_pb2.DataType.Value(kind)
            infos.append(api_pb2.HParamInfo(name=name, type=code, domain_discrete=domain))
    named = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in metrics]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=named)
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value("STATUS_SUCCESS"))
    return [
        _build_session(hparams_metadata.EXPERIMENT_TAG, experiment=experiment),
        _build_session(hparams_metadata.SESSION_START_INFO_TAG, session_start_info=start),
        _build_session(hparams_metadata.SESSION_END_INFO_TAG, session_end_info=end),
    ]


def _are_of(values: Sequence[Any], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _field_of(value: Any) -> tuple[str, str]:
    """Return a hyperparameter's type in TensorBoard and the field of its value. Bools are numbers, as in PyTorch."""
    if isinstance(value, int | float | Tensor):
        return "DATA_TYPE_FLOAT64", "number_value"
    if isinstance(value, str):
        return "DATA_TYPE_STRING", "string_value"
    raise ValueError("value should be one of int, float, str, bool, or torch.Tensor")


def _build_session(tag: str, **content: Any) -> Any:
    version = hparams_metadata.PLUGIN_DATA_VERSION
    data = plugin_data_pb2.HParamsPluginData(version=version, **content)
    return build_plugin_value(tag, hparams_metadata.PLUGIN_NAME, data.SerializeToString())


# -- precision and recall -------------------------------------------------------------------------------


def build_pr_curve(tag: str, curve: Any, num_thresholds: int) -> Any:
    """Return the value of a precision-recall curve.

    Args:
        tag: Its name.
        curve: True and false positives, true and false negatives, precision and recall, (6, thresholds).
        num_thresholds: The number of thresholds.
    """
    count = min(num_thresholds, _MOST_THRESHOLDS)
    content = PrCurvePluginData(version=0, num_thresholds=count).SerializeToString()
    tensor = build_tensor("DT_FLOAT", "float_val", curve.reshape(-1).tolist(), curve.shape)
    return build_plugin_value(tag, "pr_curves", content, tensor)


def compute_pr_curve(labels: Any, predictions: Any, num_thresholds: int, weights: Any) -> Any:
    """Return the rows of `build_pr_curve` for predictions in [0, 1].

    Args:
        labels: 1 for true examples, else 0.
        predictions: The probability of each example.
        num_thresholds: The number of thresholds.
        weights: Weights of the examples; None for 1.
    """
    count = min(num_thresholds, _MOST_THRESHOLDS)
    bins = np.floor(predictions * (count - 1)).astype(np.int32).reshape(-1)
    truth = labels.astype(np.float64).reshape(-1)
    weights = np.ones_like(truth) if weights is None else np.broadcast_to(weights, truth.shape)

    def count_above(shares: Any) -> Any:
        found = np.histogram(bins, bins=count, range=(0, count - 1), weights=shares * weights)[0]
        return np.cumsum(found[::-1])[::-1]

    tp, fp = count_above(truth), count_above(1.0 - truth)
    tn, fn = fp[0] - fp, tp[0] - tp
    precision = tp / np.maximum(_LEAST_COUNT, tp + fp)
    return np.stack((tp, fp, tn, fn, precision, tp / np.maximum(_LEAST_COUNT, tp + fn)))


# -- layouts of charts ----------------------------------------------------------------------------------


def build_chart_layout(layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> Any:
    """Return the value that arranges scalars in charts.

    Args:
        layout: Category -> title -> ["Multiline", tags] or ["Margin", [value, lower, upper]].

    Raises:
        AssertionError: If a margin has another number of tags than three.
    """
    categories = []
    for category, charts in layout.items():
        built = []
        for title, (kind, tags) in charts.items():
            if kind == "Margin":
                if len(tags) != 3:
                    raise AssertionError(
                        f"A Margin chart needs the tags of a value, its lower and its upper bound, got {len(tags)}"
                    )
                series = layout_pb2.MarginChartContent.Series(value=tags[0], lower=tags[1], upper=tags[2])
                content = layout_pb2.MarginChartContent(series=[series])
                built.append(layout_pb2.Chart(title=title, margin=content))
            else:
                lines = layout_pb2.MultilineChartContent(tag=list(tags))
                built.append(layout_pb2.Chart(title=title, multiline=lines))
        categories.append(layout_pb2.Category(title=category, chart=built))
    text = layout_pb2.Layout(category=categories).SerializeToString()
    tensor = TensorProto(dtype="DT_STRING", string_val=[text], tensor_shape=TensorShapeProto())
    return build_plugin_value("custom_scalars__config__", "custom_scalars", b"", tensor)


# -- meshes, tensors, audio, images, embeddings ---------------------------------------------------------


def build_mesh(tag: str, parts: Mapping[str, Any], config: Any) -> list[Any]:
    """Return the values of a mesh or a cloud of points.

    Args:
        tag: Its name.
        parts: "VERTEX", "FACE" and "COLOR" -> array (*batch, 3), or None.
        config: Names of ThreeJS classes and their settings; None for none.
    """
    given = {MeshPluginData.ContentType.Value(name): part for name, part in parts.items() if part is not None}
    components = mesh_metadata.get_components_bitmask(list(given))
    values = []
    for code, part in given.items():
        name = mesh_metadata.get_instance_name(tag, code)
        described = mesh_metadata.create_summary_metadata(
            tag,
            None,
            code,
            components,
            part.shape,
            None,
            json_config=json.dumps(config or {}, sort_keys=True),
        )
        tensor = build_tensor("DT_FLOAT", "float_val", part.reshape(-1).tolist(), part.shape)
        values.append(Summary.Value(tag=name, tensor=tensor, metadata=described))
    return values


_FIELDS = {
    "float32": ("DT_FLOAT", "float_val"), "float64": ("DT_DOUBLE", "double_val"), "int32": ("DT_INT32", "int_val"),
    "int64": ("DT_INT64", "int64_val"), "int8": ("DT_INT8", "int_val"), "uint8": ("DT_UINT8", "uint32_val"),
    "int16": ("DT_INT16", "int_val"), "bool": ("DT_BOOL", "bool_val"), "float16": ("DT_HALF", "half_val"),
    "bfloat16": ("DT_BFLOAT16", "half_val"), "complex64": ("DT_COMPLEX64", "scomplex_val"),
    "complex128": ("DT_COMPLEX128", "dcomplex_val"),
}  # fmt: skip


def build_tensor_value(tag: str, tensor: Tensor) -> Any:
    """Return the value of a tensor.

    Raises:
        ValueError: If TensorBoard has no such dtype.
    """
    name = tensor.dtype.name
    if name not in _FIELDS:
        raise ValueError(f"{tag} has unsupported tensor dtype {tensor.dtype}")
    kind, field = _FIELDS[name]
    flat: Any = tensor.detach().cpu().reshape(-1)
    if field == "half_val":
        flat = flat.float().view(dtypes.int32)  # the bits of a float32, as PyTorch writes halves
    elif tensor.dtype.is_complex:
        flat = _split_complex(flat)
    proto = build_tensor(kind, field, flat.tolist(), tensor.shape)
    return build_plugin_value(tag, "tensor", b"", proto)


def _split_complex(flat: Any) -> Any:
    values = flat.numpy()
    return np.stack([values.real, values.imag], -1).reshape(-1)


def build_audio(tag: str, samples: Any, sample_rate: int) -> Any:
    """Return the value of one channel of audio as 16-bit samples.

    Args:
        tag: Its name.
        samples: Values from -1 to 1; others are clipped.
        sample_rate: Samples in a second.

    Raises:
        AssertionError: If there are several channels.
    """
    samples = samples.squeeze()
    if samples.ndim != 1:
        raise AssertionError("input tensor should be 1 dimensional.")
    coded = (samples.clip(-1, 1) * np.iinfo(np.int16).max).astype("<i2")
    file = io.BytesIO()
    with wave.Wave_write(file) as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(coded.tobytes())
    audio = Summary.Audio(
        sample_rate=sample_rate, num_channels=1, length_frames=len(coded), encoded_audio_string=file.getvalue(),
        content_type="audio/wav",
    )  # fmt: skip
    return Summary.Value(tag=tag, audio=audio)


def arrange_in_grid(images: Any, columns: int = 8) -> Any:
    """Return images (N, C, H, W) of one or three channels in rows of a picture, (3, H * rows, W * columns)."""
    count, channels, height, width = images.shape
    if channels not in (1, 3):
        raise AssertionError(f"images have one or three channels, got {channels}")
    columns = min(count, columns)
    rows = -(-count // columns)
    padded = np.zeros((rows * columns, 3, height, width), images.dtype)
    padded[:count] = images
    grid = padded.reshape(rows, columns, 3, height, width).transpose(2, 0, 3, 1, 4)
    return grid.reshape(3, rows * height, columns * width)


def draw_figures(figures: Any, close: bool) -> Any:
    """Return pictures of Matplotlib's figures, uint8, (3, H, W) or for a list (N, 3, H, W).

    Args:
        figures: A figure or a list.
        close: Close the figures afterwards.
    """
    import matplotlib.pyplot as plt  # a program without figures does not need it
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    def draw(figure: Any) -> Any:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].transpose(2, 0, 1).copy()
        if close:
            plt.close(figure)
        return pixels

    return np.stack([draw(figure) for figure in figures]) if isinstance(figures, list) else draw(figures)


def write_embedding(
    folder: str, subfolder: str, name: str, matrix: Any, metadata: Any, images: Any, header: Any
) -> None:  # fmt: skip
    """Write the rows of a matrix for TensorBoard's projector, and add them to its configuration.

    Args:
        folder: The folder of the events.
        subfolder: The folder below it for these rows.
        name: The name of the embedding.
        matrix: (rows, columns).
        metadata: The label of each row, or its labels if there is a `header`; None for none.
        images: An image of each row, (rows, C, H, W); None for none.
        header: The names of the labels.
    """
    place = Path(folder, subfolder)
    place.mkdir(parents=True, exist_ok=True)
    _write_rows(place / "tensors.tsv", matrix.tolist())
    config_path = Path(folder, "projector_config.pbtxt")
    config = ProjectorConfig()
    if config_path.exists():
        text_format.Parse(config_path.read_text(), config)
    embedding = config.embeddings.add(tensor_name=name, tensor_path=f"{subfolder}/tensors.tsv")
    if metadata is not None:
        labels = [header, *metadata] if header else [[label] for label in metadata]
        _write_rows(place / "metadata.tsv", labels)
        embedding.metadata_path = f"{subfolder}/metadata.tsv"
    if images is not None:
        _write_sprite(place / "sprite.png", images)
        embedding.sprite.image_path = f"{subfolder}/sprite.png"
        embedding.sprite.single_image_dim.extend([images.shape[3], images.shape[2]])
    replace_file(config_path, text_format.MessageToString(config))


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    replace_file(path, "".join(["\t".join(map(str, row)) + "\n" for row in rows]))


def _write_sprite(path: Path, images: Any) -> None:
    """Write images (N, C, H, W) as one square picture."""
    from PIL import Image

    grid = arrange_in_grid(images, int(np.ceil(len(images) ** 0.5))).transpose(1, 2, 0)
    square = np.zeros((max(grid.shape[:2]),) * 2 + (3,))
    square[: grid.shape[0], : grid.shape[1]] = grid
    file = io.BytesIO()
    Image.fromarray((square * 255).clip(0, 255).astype(np.uint8)).save(file, format="PNG")
    replace_file(path, file.getvalue())
