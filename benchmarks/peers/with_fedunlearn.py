"""fedunlearn: federated averaging on its engine; the third argument is the number of workers."""

import sys
from pathlib import Path

from protocol import NAMES, load, serve

sys.path.append(str(Path(__file__).parents[1]))
from timing import family_cpu

import fedunlearn as fu
from fedunlearn.core.vectors import views
from fedunlearn.methods.fedavg import Pretraining


def main() -> None:
    workload = load(sys.argv[1])
    workers = int(sys.argv[3])
    model = workload.model()
    data = {
        f"client-{number:04}": fu.ClientData(fu.Examples(x, y))
        for number, (x, y) in enumerate(zip(workload.x, workload.y, strict=True))
    }
    federation = fu.Parallel(model, data, workers=workers)
    request = fu.Request(fu.flatten(model), tuple(data), ())
    phase = Pretraining(sys.maxsize, workload.lr)
    terms = fu.Terms(lr=workload.lr, batch_size=workload.batch_size)
    state = fu.State(request.params)

    def play() -> None:
        nonlocal state
        round = phase.round(request, state)
        replies = federation.exchange(next(round), terms)
        try:
            round.send(replies)
        except StopIteration as end:
            state = end.value

    note = f"workers: {workers}"
    serve(
        f"fedunlearn, {note}",
        "fedunlearn",
        note,
        play,
        lambda: dict(zip(NAMES, views(state.params, model), strict=True)),
        cpu=family_cpu,
    )


if __name__ == "__main__":
    main()
