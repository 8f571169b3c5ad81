"""For tests of your own training: break it at places that you name, and ask whether a resumed run is the same run.

:class:`Faults` kills, raises or hangs in a rank, by a seeded plan. :func:`check_resume` trains twice, once in one go and once
through the loss of a process, or of everything but the disk, and names the first thing that differs. :func:`check_generation` loads a
generation of a run from its store, and compares what follows with what followed in the run. :mod:`replicad.testing.conformance` asks the same of an adapter of a framework, at each
place of a step and by what the framework did; :func:`check_trainer` asks it of your own trainer, and of the checkpoints that the trainer itself writes, without a daemon.
"""

from .check import SOURCES, Checked, Different, Resumption, Train, check_generation, check_resume
from .faults import KINDS, PLACES, Fault, Faults, Injected
from .frameworks import of_huggingface, of_lightning
from .recorder import Recorder, Trainer
from .trainer import Differs, TrainerReport, check_trainer

__all__ = [
    "KINDS", "PLACES", "SOURCES", "Checked", "Different", "Differs", "Fault", "Faults", "Injected", "Recorder", "Resumption", "Train", "Trainer", "TrainerReport",
    "check_generation", "check_resume", "check_trainer", "of_huggingface", "of_lightning",
]  # fmt: skip
