import torch

# Threads of several test processes wait for each other, and forked children must not inherit a pool.
torch.set_num_threads(1)
