"""Argument records: the parameters of a kernel by name, so that a launch cannot confuse their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, dataclass_transform, get_type_hints


@dataclass(frozen=True)
class Region:
    """A matrix of rows on the card: the address of its first row and the bytes from row to row."""

    address: int
    stride: int

    def __iter__(self) -> Iterator[int]:
        """The two numbers as kernels take them."""
        return iter((self.address, self.stride))

    def columns(self, start_bytes: int) -> Region:
        """The part of it that begins behind `start_bytes` of each row."""
        return Region(self.address + start_bytes, self.stride)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class KernelArguments:
    """The base class of argument records; a subclass declares one field for each kernel parameter.

    A field is `int` (a 64-bit integer or an address), `float` (a float32), a `Region` (its address, then its
    stride), or another record. Type checkers treat a subclass as a frozen dataclass that is made by keyword.
    It is not one, because `dataclass` compiles methods for each class when the module is imported, 1 ms a
    class, and all records are imported at every start.

    A kernel has a single parameter, annotated with the record's class, and returns `None`: `stage` turns the
    fields into the kernel's parameters, in the order of their declaration, in which `pack_arguments` packs
    them. Subclasses of subclasses are not supported.
    """

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        kinds: Mapping[str, str] = cls.__annotations__
        for name in values.keys() - kinds.keys():
            raise TypeError(f"{cls.__name__} has no field {name}")
        for name, kind in kinds.items():
            if name in values:
                value = values[name]
            elif hasattr(cls, name):
                value = getattr(cls, name)
            else:
                raise TypeError(f"{cls.__name__} needs {name}")
            self.__dict__[name] = float(value) if kind == "float" else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __iter__(self) -> Iterator[int | float]:
        """The values of the kernel's parameters, in order."""
        for name in type(self).__annotations__:
            value = self.__dict__[name]
            if isinstance(value, KernelArguments | Region):
                yield from value
            else:
                yield value


def is_record(cls: Any) -> bool:
    """Whether an annotation stands for several parameters."""
    return isinstance(cls, type) and issubclass(cls, KernelArguments | Region)


@cache
def leaves(record: type) -> tuple[tuple[tuple[str, ...], type], ...]:
    """The parameters that a record stands for: the path of attributes, and int or float."""
    found: list[tuple[tuple[str, ...], type]] = []
    for name, kind in get_type_hints(record).items():
        if is_record(kind):
            found += [((name, *path), leaf) for path, leaf in leaves(kind)]
        else:
            assert kind in (int, float), f"{record.__name__}.{name} must be int, float or a record"
            found.append(((name,), kind))
    return tuple(found)
