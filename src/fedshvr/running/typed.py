"""Options against the names and types that something declares: a TypedDict, or the signature of a part's target."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedshvr.errors import UserError, check, no_option

Scalar = (str, int, float, NoneType)  # bool is an int
RESERVED = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # Hydra's own


class Least(NamedTuple):
    """A bound, as in Annotated[int, Least(1)]."""

    value: int


KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", lambda v: type(v) is int),
    float: ("a finite number", lambda v: type(v) in (int, float) and isfinite(v)),
    bool: ("true or false", lambda v: type(v) is bool),
    str: ("a word", lambda v: isinstance(v, str)),
    list: ("a list", lambda v: isinstance(v, list)),
    tuple: ("a list", lambda v: isinstance(v, list)),
    dict: ("a group of options", lambda v: isinstance(v, dict)),
    NoneType: ("null", lambda v: v is None),
}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of a configuration is of a type; what no yaml file can write is left to whoever declares it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [bound.value for bound in inner[1:] if isinstance(bound, Least)]
        return fits(value, inner[0]) and (value is None or all(value >= least for least in bounds))
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        known = [h for h in inner if is_known(h)] if isinstance(value, Scalar) else []
        return any(fits(value, h) for h in known or inner)
    if not is_known(hint):
        return True
    if origin is list and isinstance(value, list):
        return all(fits(v, inner[0]) for v in value)
    if origin is dict and isinstance(value, dict):
        return all(fits(v, inner[1]) for v in value.values())
    return KINDS[origin or hint][1](value)


def is_known(hint: Any) -> bool:
    origin = get_origin(hint)
    return (origin or hint) in (*KINDS, Literal, Annotated, Union, UnionType)


def described(hint: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([described(inner[0]), *(f"of at least {bound.value}" for bound in inner[1:])])
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(described(h) for h in inner if is_known(h)))
    words = KINDS[origin or hint][0]
    return f"{words}, each {described(inner[0])}" if origin is list and inner[0] is not Any else words


def check_options(owner: str, options: Mapping[str, Any], declared: Any) -> None:
    """Refuse a name that a TypedDict does not have, a value of another type, and the lack of what it requires."""
    hints = get_type_hints(declared, include_extras=True)
    prefix = f"{owner}." if owner else ""
    for name, value in options.items():
        if name not in hints:
            raise no_option(owner, name, value, hints)
        if is_typeddict(hints[name]) and isinstance(value, dict):
            check_options(prefix + name, value, hints[name])
        else:
            check_type(prefix + name, value, dict if is_typeddict(hints[name]) else hints[name])
    for name in declared.__required_keys__ - set(options):
        check(False, f"{prefix}{name}: is missing; must be {described(hints[name])}")


def check_type(name: str, value: Any, hint: Any) -> None:
    check(fits(value, hint), f"{name}={value}: must be {described(hint) if is_known(hint) else hint}")


def check_call(owner: str, target: Callable, options: Mapping[str, Any], given: Iterable[str] = ()) -> None:
    """Refuse what a call of the target with these options, and those given by name elsewhere, would refuse."""
    parameters, hints = parameters_of(target)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    for name, value in options.items():
        if name in RESERVED:
            continue
        if name not in named and not open_ended:
            raise no_option(owner, name, value, set(named) - set(given))
        if name in named and value != named[name].default and not is_part(value):
            check_type(f"{owner}.{name}", value, hints.get(name, Any))
    lacking = [n for n, p in named.items() if p.default is p.empty and n not in options and n not in given]
    if lacking and "_args_" not in options:
        name = lacking[0]
        words = described(hints[name]) if is_known(hints.get(name)) else "given"
        raise UserError(f"{owner}.{name}: is missing; must be {words}")


def parameters_of(target: Callable) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a callable and the types of those that say one."""
    parameters = inspect.signature(target).parameters
    maker = target.__init__ if inspect.isclass(target) else target
    try:
        return parameters, get_type_hints(maker, include_extras=True)
    except (NameError, TypeError):  # a type that only a type checker sees
        return parameters, {}


def is_part(value: Any) -> bool:
    """Whether an object will be made of this value: it has a _target_, or is a list of such."""
    if isinstance(value, list):
        return any(is_part(v) for v in value)
    return isinstance(value, dict) and "_target_" in value
