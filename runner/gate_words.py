"""What a rule asks for and what was observed, in words: thresholds exactly, values with the digits it takes.

A value is rounded for reading, but never so that it reads as the threshold, or as beyond it, when it is not.
"""

from decimal import Decimal
from fractions import Fraction

from passhat.runner.gate_file import Kind, Rule
from passhat.runner.metrics import Observation
from passhat.runner.render import some

_MOST_DIGITS = 12


def required(rule: Rule) -> str:
    """Say what a rule asks for: "≥ +5.0 points", "≤ 0 runs"."""
    sign = "≥" if rule.is_floor else "≤"
    if rule.reads_bound and rule.kind is Kind.DIFFERENCE:
        sign = ">" if rule.is_floor else "<"
    text = _with_unit(rule, _threshold(rule), rule.threshold)
    return f"{sign} {text}{' at its bound' if rule.reads_bound else ''}"


def observed(rule: Rule, seen: Observation) -> str:
    """Say what was observed: the value, or its lowest and highest, and the bounds where the rule reads them."""
    low, high = seen.low, seen.high
    if low is None and high is None:
        return "unknown"
    text = _number(rule, low) if low == high else f"{_number(rule, low)} … {_number(rule, high)}"
    if rule.reads_bound and seen.lower is not None and seen.upper is not None:
        text += f" [{_number(rule, Fraction(seen.lower))}, {_number(rule, Fraction(seen.upper))}]"
    text = _with_unit(rule, text, high)
    if seen.examples:
        text += f": {some(seen.examples, 3)}"
    return text


def _with_unit(rule: Rule, text: str, value: Fraction | None) -> str:
    if rule.kind is Kind.DIFFERENCE:
        return f"{text} points"
    if rule.kind is Kind.EVENTS:
        return f"{text} {'run' if value == 1 else 'runs'}"
    return f"{text} %" if rule.kind is Kind.SHARE or rule.file.change == "relative" else text


def _scale(rule: Rule) -> int:
    """How many of the unit that is shown make 1."""
    in_hundredths = rule.kind in (Kind.DIFFERENCE, Kind.SHARE) or rule.file.change == "relative"
    return 100 if in_hundredths else 1


def _digits(rule: Rule) -> int:
    """How many digits after the point are shown at least."""
    if rule.kind is Kind.LEVEL:
        return 3
    return 1 if _scale(rule) == 100 else 0


def _sign(rule: Rule, value: Fraction) -> str:
    return "+" if value > 0 and (rule.kind is Kind.DIFFERENCE or rule.file.change is not None) else ""


def _threshold(rule: Rule) -> str:
    """Return the threshold exactly: it was given as a decimal number."""
    exact = Decimal(rule.threshold.numerator * _scale(rule)) / Decimal(rule.threshold.denominator)
    written = max(0, -int(exact.normalize().as_tuple().exponent)) if exact else 0
    return f"{_sign(rule, rule.threshold)}{exact:.{max(written, _digits(rule))}f}"


def _number(rule: Rule, value: Fraction | None) -> str:
    """Return a value rounded, with more digits while that makes it look on the other side of the threshold."""
    if value is None:
        return "unbounded"
    if rule.kind in (Kind.EVENTS, Kind.SIZE):
        return str(int(value))
    scale, digits = _scale(rule), _digits(rule)
    if rule.kind is Kind.EFFICIENCY and rule.file.change != "relative":
        digits = _significant(value)
    text = f"{float(value * scale):.{digits}f}"
    while digits < _MOST_DIGITS and _side(Fraction(text), rule.threshold * scale) != _side(value, rule.threshold):
        digits += 1
        text = f"{float(value * scale):.{digits}f}"
    return f"{_sign(rule, value)}{text}"


def _significant(value: Fraction) -> int:
    """How many digits after the point a number needs for four that count; none for whole ones."""
    if value.denominator == 1:
        return 0
    exponent = Decimal(float(abs(value))).adjusted()
    exact = len(f"{float(value):.10f}".rstrip("0").partition(".")[2])
    return min(exact, max(0, 3 - exponent))


def _side(value: Fraction, threshold: Fraction) -> int:
    return (value > threshold) - (value < threshold)
