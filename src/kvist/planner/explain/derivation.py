"""A derivation as data: equations with the symbols, the same with this model's numbers, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvist.cost.interval import Interval

Unit = Literal["bytes", "tokens", "rows", "users", "flops", "flops/byte", "seconds", "ratio", "elements"]


@dataclass(frozen=True, slots=True)
class Equation:
    """``symbol = formula = numbers = value``. ``formula`` is empty where the numbers say it all; ``note``: in words."""

    symbol: str
    formula: str
    numbers: str
    value: Interval
    unit: Unit
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Equations that lead to one result, and what their symbols mean."""

    title: str
    equations: tuple[Equation, ...]
    about: str = ""

    def value(self, symbol: str) -> float:
        """Best value of the equation for ``symbol``. Raises ``KeyError``."""
        for equation in self.equations:
            if equation.symbol == symbol:
                return equation.value.best
        raise KeyError(symbol)


def exact(
    symbol: str, formula: str, numbers: str, value: float, unit: Unit = "bytes", note: str = "", *, known: bool = True
) -> Equation:
    """An equation whose value is one number; ``known`` False: it rests on an assumption."""
    return Equation(symbol, formula, numbers, Interval.exactly(value, "exact" if known else "assumed"), unit, note)
