"""What published code does, in PyTorch, to compare with."""

import torch


def mean_shift_of_all(votes, h=0.08, tol=1e-3, max_iter=300):
    """Every vote is a seed, and all move until the last has come to rest: votes (n, 3) [m] -> the centre (3) and which
    votes agree on it (n). `h` is the bandwidth [m]."""
    centres = votes
    for _ in range(max_iter + 1):
        w = torch.exp(torch.cdist(centres, votes) ** 2 * (-0.5 / h**2))
        moved = w @ votes / w.sum(1, keepdim=True)
        done = (moved - centres).norm(dim=1).max() < tol * h
        centres = moved
        if done:
            break
    near = torch.cdist(votes, votes) < h
    best = near.sum(1).argmax()
    return centres[best], near[best]
