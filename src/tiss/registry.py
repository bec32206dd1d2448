"""Named objects that third parties can add: a decorator here, an entry point there."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Generic, TypeVar

from tiss.errors import TissError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps plain names to objects. Names are keys and are never parsed.

    Built-in entries come from the modules in `modules`, imported on first use ("package.*" is all of a package, so
    that a new file there needs no line elsewhere). Third parties add theirs through the entry-point group
    `tiss.<plural>`, whose modules register on import.
    """

    def __init__(self, what: str, plural: str, modules: tuple[str, ...] = ()) -> None:
        self.what = what
        self.plural = plural
        self._modules = modules
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@METHODS.register("mine")`."""

        def add(entry: T) -> T:
            if name in self._entries and self._entries[name] is not entry:
                raise TissError(f"{self.what} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for name in self._modules:
            package = name.removesuffix(".*")
            found = import_module(package)
            if name != package:
                for module in iter_modules(found.__path__, f"{package}."):
                    import_module(module.name)
        for point in entry_points(group=f"tiss.{self.plural}"):
            try:
                loaded = point.load()
            except Exception as error:  # a third party's module may raise anything
                raise TissError(
                    f"plug-in {point.value} (entry point {point.name!r} in tiss.{self.plural}) cannot be loaded: "
                    f"{type(error).__name__}: {error}; repair or uninstall it"
                ) from error
            if point.name not in self._entries and not isinstance(loaded, ModuleType):
                self._entries[point.name] = loaded

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def get(self, name: str) -> T:
        """The entry called `name`; the error for an unknown name suggests the nearest."""
        self._load()
        if name not in self._entries:
            raise TissError(suggest(name, self._entries, self.what))
        return self._entries[name]
