"""An erasure request, from the desk to the certificate.

A desk is a folder with a ``desk.toml``. ``receive`` authenticates a signed request, ``plan_erasure`` lists
what an answer takes, ``erase`` answers it on a connected federation, and ``purge`` deletes what it needed.
"""

from .admission import plan_erasure
from .answer import erase
from .certificate import Verified, verify
from .claim import Claim
from .desk import Attempt, Case, Desk, open_desk
from .plan import Plan, make_plan
from .purging import due, purge
from .reception import examine, receive
from .request_state import RequestState
from .retraining import against_retraining
from .settings import Policy, read_policy

__all__ = [
    "Attempt",
    "Case",
    "Claim",
    "Desk",
    "Plan",
    "Policy",
    "RequestState",
    "Verified",
    "against_retraining",
    "due",
    "erase",
    "examine",
    "make_plan",
    "open_desk",
    "plan_erasure",
    "purge",
    "read_policy",
    "receive",
    "verify",
]
