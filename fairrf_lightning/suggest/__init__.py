"""Which columns are related to S: ranked, with intervals, and proposed as related features."""

from fairrf_lightning.suggest.association import Association, associations
from fairrf_lightning.suggest.proposal import Proposal, propose

__all__ = ["Association", "Proposal", "associations", "propose"]
