"""Studies of many federations: the FedOSD paper, the benchmark, and per-example tests."""
