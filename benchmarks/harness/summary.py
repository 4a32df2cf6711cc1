"""From the samples of a run to the entry of out/bench.json: medians, spread, ratios, limit."""

import statistics

# Two ways to the same parameters differ by rounding; a lost update or publication by far more.
RESULT_TOLERANCE = 1e-6


def spread(values):
    """Minimum, quartiles and maximum."""
    if len(values) == 1:
        low = middle = high = values[0]
    else:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"min": min(values), "q1": low, "median": middle, "q3": high, "max": max(values)}


def ratios(numerators, denominators):
    """Round by round: what slows the machine for a while slows both."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def _by_role(contestants, samples, role):
    return [c for c in contestants if c.role == role and c.name in samples]


def _fastest(contestants, samples):
    return min(contestants, key=lambda c: statistics.median(samples[c.name]))


def binding_limit(contestants, samples, add_up=False):
    """Title and samples of the slowest of the limits, each taken from its fastest contestant, or of
    their sum, round by round; (None, None) where one is missing."""
    roles = {c.role for c in contestants} - {"ours", "peer", "reference"}
    candidates = [_by_role(contestants, samples, role) for role in sorted(roles)]
    best = [_fastest(group, samples) for group in candidates if group]
    if not best or (add_up and len(best) < len(roles)):
        return None, None
    if add_up:
        title = " plus ".join(c.title for c in best)
        return title, [sum(figures) for figures in zip(*(samples[c.name] for c in best), strict=True)]
    slowest = max(best, key=lambda c: statistics.median(samples[c.name]))
    return slowest.title, samples[slowest.name]


def differing_results(contestants, checks, tolerance):
    """Sentences about contestants whose ranks, or whose results, are not the same as the first's."""
    compared = [c for c in contestants if c.same_result and c.name in checks]
    sentences = []
    for contestant in compared:
        for rank, answer in enumerate(checks[contestant.name]):
            for key, expected in checks[compared[0].name][0].items():
                actual = answer.get(key)
                if actual is None or abs(actual - expected) > tolerance * abs(expected):
                    sentences.append(
                        "%s, rank %d: %s is %r, but %r in %s"
                        % (contestant.name, rank, key, actual, expected, compared[0].name)
                    )
    return sentences


def _figures(contestant, samples, ours):
    values = samples[contestant.name]
    figures = {
        "name": contestant.name,
        "title": contestant.title,
        "role": contestant.role,
        "ms": statistics.median(values),
        "spread_ms": spread(values),
        "samples_ms": values,
    }
    if ours:
        figures["ratio"] = spread(ratios(ours, values))
    return figures


def entry(name, title, contestants, result, unit="ms", limits_add_up=False,
          result_tolerance=RESULT_TOLERANCE):
    """One element of out/bench.json. Fields that could not be measured are None; `problems` says why.

    ratio is the median over the rounds of ours / the fastest peer; limit_ms the binding limit's median.
    The fields are called so in every unit.
    """
    samples = result.samples
    problems = list(result.failures.values()) + differing_results(
        contestants, result.checks, result_tolerance)
    ours = _by_role(contestants, samples, "ours")
    peers = _by_role(contestants, samples, "peer")
    ours_ms = samples[ours[0].name] if ours else None
    peer = _fastest(peers, samples) if peers else None
    limit, limit_ms = binding_limit(contestants, samples, limits_add_up)
    made = {
        "name": name,
        "title": title,
        "unit": unit,
        "rounds": max(map(len, samples.values()), default=0),
        "ours_ms": statistics.median(ours_ms) if ours else None,
        "has_peers": any(c.role == "peer" for c in contestants),
        "peer": peer.title if peer else None,
        "peer_ms": statistics.median(samples[peer.name]) if peer else None,
        "ratio": None,
        "limit": limit,
        "limit_ms": statistics.median(limit_ms) if limit else None,
        "ratio_to_limit": None,
        "spread": {},
        "contestants": [
            _figures(c, samples, ours_ms) for c in contestants if c.name in samples
        ],
        "problems": problems,
    }
    if ours:
        made["spread"]["ours_ms"] = spread(ours_ms)
    if peer:
        made["spread"]["peer_ms"] = spread(samples[peer.name])
    if limit:
        made["spread"]["limit_ms"] = spread(limit_ms)
    if ours and peer:
        made["spread"]["ratio"] = spread(ratios(ours_ms, samples[peer.name]))
        made["ratio"] = made["spread"]["ratio"]["median"]
    if ours and limit:
        made["spread"]["ratio_to_limit"] = spread(ratios(ours_ms, limit_ms))
        made["ratio_to_limit"] = made["spread"]["ratio_to_limit"]["median"]
    return made
