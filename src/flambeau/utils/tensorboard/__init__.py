"""torch.utils.tensorboard: writes event files with the package `tensorboard`, which must be installed."""

try:
    from tensorboard.summary.writer.record_writer import RecordWriter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: torch.utils.tensorboard writes with the package tensorboard; install it with "
        "'pip install tensorboard'",
        name=error.name,
    ) from error

from flambeau.utils.tensorboard.writer import FileWriter, SummaryWriter

__all__ = ["FileWriter", "RecordWriter", "SummaryWriter"]
