"""Models that are retrained in the federation itself, so that an audit on any engine can reach a verdict."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from torch import nn

from ..auditing import audit
from ..core import Federation, Listener, State, require, vectors
from ..core.seeds import derive
from ..driver.sentences import SENTENCES
from ..evidence import Evidence
from ..server import forget
from ..signing import stated_client
from .certification import RETRAINED
from .desk import Desk


def against_retraining(
    desk: Desk,
    request: str,
    federation: Federation,
    model: nn.Module,
    *,
    rounds: int,
    number: int = 2,
    build: Callable[[], nn.Module] | None = None,
    show: Callable[[str], AbstractContextManager[Listener]] | None = None,
) -> Callable[[State, State], Evidence]:
    """An auditor for ``erase`` that first retrains models without the client, as long as training took.

    It trains one or two (``number``) for so many ``rounds``, with the desk's ``schedule.pretrain_lr`` and
    ``[training]``: all three must be those of the model's own training. They lie encrypted in the folder of
    the request, where a training that was stopped continues and a purge deletes them. The client must stay
    online until the end, because it compares the models on its own data. ``show`` makes the listener of each
    training.
    """
    require(number in (1, 2), "number", number, "1 or 2")

    def compare(after: State, original: State) -> Evidence:
        policy, client = desk.policy, stated_client(desk.document(request))
        conditions = policy.conditions
        if conditions["guards"] is not None:
            # Training tries no step, and a retraining that did would ask three times as often.
            conditions["guards"] = replace(conditions["guards"], utility=False)
        without, retrained = desk.left_out(federation, client), []
        worse_off = re.escape(SENTENCES["worse"].partition("{")[0])
        for which in range(1, number + 1):
            module = copy.deepcopy(model)
            vectors.load(module, original)
            shown = nullcontext(None) if show is None else show(f"retraining-{which}")
            with shown as listener, warnings.catch_warnings():
                warnings.filterwarnings("ignore", worse_off)  # it is for comparison only
                forget(
                    federation,
                    module,
                    client,
                    desk.place(request) / RETRAINED / str(which),
                    method="retrain",
                    build=build,
                    seed=derive("retraining", policy.seed),
                    floor=None,
                    without=without,
                    cipher=desk.key(request),
                    listeners=() if listener is None else [listener],
                    rounds=rounds,
                    number=which,
                    **conditions,
                )
            retrained.append(module)
        return audit(
            federation,
            after,
            targets=client,
            retrained=retrained[0],
            again=retrained[1] if number == 2 else None,
            original=original,
            clients={client, *federation.present()}.difference(without),
        )

    return compare
