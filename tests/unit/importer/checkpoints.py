"""Former path of the helpers, which scripts that reproduce old defects import."""

from tests.unit.models.encoders.checkpoints import *  # noqa: F403
