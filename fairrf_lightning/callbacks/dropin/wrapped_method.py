"""Methods of an instance that run with something around them, until they are restored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import getattr_static, isfunction
from typing import Any, TypeAlias

Around: TypeAlias = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class WrappedMethod:
    """A method on the instance, replaced by a call of ``around(method, args, kwargs)``.

    Several may wrap one method, the later around the earlier. They can be removed in any order, since
    Lightning tears callbacks down in the order in which it set them up. Copies and pickles of the instance
    get the method without wrappers.

    Args:
        owner: The instance, whose method is wrapped at once.
        name: Name of the method.
        around: Called in place of the method, with it and its arguments.
    """

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner = owner
        self._name = name
        self.around = around
        update_wrapper(self, getattr(owner, name), updated=())  # Lightning looks at the signatures of hooks
        # The user's own on the instance, or another wrapper; otherwise that of the class.
        self.inner: Any = vars(owner).get(name)
        self._of_class: Any = None  # found in the first call
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is None:
            self._of_class = self._of_class or _of_class(self._owner, self._name)
            return self.around(self._of_class, args, kwargs)
        return self.around(self.inner, args, kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.inner is None:
            return _of_class, (self._owner, self._name)
        return _same, (self.inner,)

    def remove(self) -> None:
        """Restore the method, or take this wrapper out of the chain of wrappers."""
        outer: Any = vars(self._owner).get(self._name)
        if outer is self:
            delattr(self._owner, self._name)
            if self.inner is not None:
                setattr(self._owner, self._name, self.inner)
            return
        while isinstance(outer, WrappedMethod):
            inner = outer.inner
            if inner is self:
                outer.inner = self.inner
            outer = inner


def _of_class(owner: Any, name: str) -> Any:
    method = getattr_static(type(owner), name)
    # A partial, since dynamo reads a bound method back from the instance, where it finds the wrapper.
    return partial(method, owner) if isfunction(method) else method.__get__(owner, type(owner))


def _same(value: Any) -> Any:
    return value
