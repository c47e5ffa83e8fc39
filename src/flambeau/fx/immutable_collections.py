"""Lists and dicts that refuse to be changed; the arguments of nodes consist of them."""

from __future__ import annotations

from typing import Any, NoReturn

from flambeau.utils._pytree import register_pytree_node

__all__ = ["immutable_dict", "immutable_list"]

_ADVICE = (
    "'{}' object does not support mutation. If you are attempting to modify the kwargs or args of a torch.fx.Node "
    "object,\ninstead create a new copy of it and assign the copy to the node:\n\n"
    "    new_args = ...  # copy and mutate args\n    node.args = new_args"
)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(_ADVICE.format(type(self).__name__))


class immutable_list(list[Any]):
    """A list that raises TypeError when a method would change it."""

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __delitem__ = __iadd__ = __imul__ = __setitem__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> Any:
        return (immutable_list, (tuple(self),))


class immutable_dict(dict[Any, Any]):
    """A dict that raises TypeError when a method would change it."""

    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]
    __delitem__ = __ior__ = __setitem__ = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        return (immutable_dict, (tuple(self.items()),))


register_pytree_node(
    immutable_list, lambda values: (list(values), None), lambda values, _: immutable_list(values)
)
register_pytree_node(
    immutable_dict,
    lambda mapping: (list(mapping.values()), list(mapping)),
    lambda values, keys: immutable_dict(zip(keys, values, strict=True)),
)
