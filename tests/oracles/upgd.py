"""UPGD number by number in plain Python: no tensors, no tricks."""

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Slow:
    """Parameters are rows of numbers: {name: [unit, unit, ...]}, a unit a list of weights; a bias is one unit."""

    def __init__(
        self, weights, *, kind="upgd", lr=0.1, weight_decay=0.0, utility_beta=0.9, gate="sigmoid", strength=1.0,
        scale="global", normaliser="corrected", protecting=True, sigma=0.0, noise="fixed", betas=(0.9, 0.999), eps=1e-8,
    ):  # fmt: skip
        self.w, self.t = weights, 0
        self.kind, self.lr, self.decay, self.beta, self.gate = kind, lr, weight_decay, utility_beta, gate
        self.strength, self.scale, self.normaliser, self.protecting = strength, scale, normaliser, protecting
        self.sigma, self.noise, self.betas, self.eps = sigma, noise, betas, eps
        self.u, self.m, self.v = (self.zeros() for _ in range(3))
        self.size = dict.fromkeys(weights, 0.0)

    def zeros(self):
        return {name: [[0.0] * len(unit) for unit in units] for name, units in self.w.items()}

    def places(self):
        return [(name, i, j) for name, units in self.w.items() for i, unit in enumerate(units) for j in range(len(unit))]

    def largest(self, place):
        """What û is divided by, at this weight."""
        name, unit, _ = place
        mine = [
            p for p in self.places()
            if self.scale == "global" or (p[0] == name and (self.scale == "tensor" or p[1] == unit))
        ]  # fmt: skip
        traces = [self.u[n][i][j] for n, i, j in mine]
        corrected = 1 - self.beta**self.t
        if self.normaliser == "corrected":
            return max(abs(u) for u in traces) / corrected
        if self.scale == "unit":
            return math.sqrt(sum(u * u for u in traces)) / corrected
        return max(traces) if max(traces) > 0 else max(abs(u) for u in traces)

    def factor(self, place):
        """The gate."""
        name, i, j = place
        top = self.largest(place)
        x = self.strength * self.u[name][i][j] / (1 - self.beta**self.t) / top if top else 0.0
        return 2 * (1 - sigmoid(x)) if self.gate == "sigmoid" else 1 - math.tanh(x)

    def step(self, g, xi=None, h=None):
        self.t += 1
        for name, i, j in self.places():
            w, bent = self.w[name][i][j], 0.0 if h is None else h[name][i][j]
            utility = -g[name][i][j] * w + 0.5 * bent * w * w
            self.u[name][i][j] = self.beta * self.u[name][i][j] + (1 - self.beta) * utility
        gates = {place: self.factor(place) for place in self.places()}
        d = {place: self.direction(place, g) for place in self.places()}
        for name, units in self.w.items():
            mine = [d[place] for place in self.places() if place[0] == name]
            self.size[name] = self.beta * self.size[name] + (1 - self.beta) * sum(x * x for x in mine) / len(mine)
            for i, unit in enumerate(units):
                for j in range(len(unit)):
                    unit_of_noise = math.sqrt(self.size[name] / (1 - self.beta**self.t)) if self.noise == "tracked" else 1.0
                    shaken = 0.0 if xi is None else self.sigma * unit_of_noise * xi[name][i][j]
                    k = gates[name, i, j]
                    if self.kind != "upgd":
                        unit[j] *= 1 - self.lr * self.decay
                    unit[j] -= self.lr * (k * (d[name, i, j] + shaken) if self.protecting else d[name, i, j] + k * shaken)

    def direction(self, place, g):
        name, i, j = place
        slope = g[name][i][j]
        if self.kind == "upgd":
            return slope + self.decay * self.w[name][i][j]
        if self.kind == "upgdw":
            return slope
        one, two = self.betas
        self.m[name][i][j] = one * self.m[name][i][j] + (1 - one) * slope
        self.v[name][i][j] = two * self.v[name][i][j] + (1 - two) * slope * slope
        return (self.m[name][i][j] / (1 - one**self.t)) / (math.sqrt(self.v[name][i][j] / (1 - two**self.t)) + self.eps)
