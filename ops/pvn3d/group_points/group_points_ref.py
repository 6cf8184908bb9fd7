"""GroupPoints and its gradient: GatherPoints with one more dimension of indices."""

import gather_points_ref as gather

OPERATOR = "GroupPoints"
COMPARE, COMPARE_GRAD = gather.COMPARE, gather.COMPARE_GRAD
reference, reference_grad = gather.reference, gather.reference_grad


def cases():
    yield from gather.cases_of((11, 7), (700, 16))


def grad_cases():
    yield from gather.grad_cases_of(cases())
