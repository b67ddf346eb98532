"""Whether values of one JSON Schema are values of another, decided by Confluent's rules in their strict form.

They ask how a schema was changed, and not what follows from it: a property that was added to an object that took any
property before is refused, since an old record may have something else under that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from headrace.schemas.formats.json_schema import JsonNode, dependent_names
from headrace.schemas.formats.problem import Problem

_Pair = tuple[int, int]
_ROUNDS_MAX = 1_000


def problems(original: JsonNode, update: JsonNode) -> list[Problem]:
    """Why `update` does not take all that `original` takes; empty if it does."""
    incompatible: dict[_Pair, list[Problem]] = {}
    for _ in range(_ROUNDS_MAX):
        comparison = _JsonComparison(incompatible)
        found = comparison.compare(original, update, "#")
        now = {pair: told for pair, told in comparison.done.items() if told}
        if not comparison.has_assumed or now.keys() == incompatible.keys():
            return found
        # A schema that contains itself was taken for compatible where it was met again: look again with what is known.
        incompatible = now
    return found


class _JsonComparison:
    """One walk over two trees. Only what is incompatible is reported."""

    def __init__(self, incompatible: dict[_Pair, list[Problem]]) -> None:
        self.done: dict[_Pair, list[Problem]] = {}
        self.has_assumed = False
        self._incompatible = incompatible
        self._under_way: set[_Pair] = set()

    def compare(self, original: JsonNode | None, update: JsonNode | None, path: str) -> list[Problem]:
        if original is None:
            return [] if update is None else [_changed("SCHEMA_ADDED", path, "nothing was asked here before")]
        if update is None:
            return []
        pair = (id(original), id(update))
        if pair in self.done:
            return self.done[pair]
        if pair in self._under_way:
            if pair in self._incompatible:
                return self._incompatible[pair]
            self.has_assumed = True
            return []
        self._under_way.add(pair)
        found = self._compare(original, update, path)
        self._under_way.discard(pair)
        self.done[pair] = found
        return found

    def _compare(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        if update.kind == "combined" and original.kind != "combined":
            is_any = len(update.parts) == 1 or update.criterion in ("anyOf", "oneOf")
            if is_any and any(not self.compare(original, part, path) for part in update.parts):
                return []
        if original.kind == "combined" and update.kind != "combined":
            is_any = len(original.parts) == 1 or original.criterion == "allOf"
            if is_any and any(not self.compare(part, update, path) for part in original.parts):
                return []
        if original.kind != update.kind:
            if original.kind == "false" or update.kind == "true":
                return []
            both = (original.words.get("connect.type"), update.words.get("connect.type"))
            if both == ("bytes", "bytes"):
                return []
            return [_changed("TYPE_CHANGED", path, f"{_said(original)} became {_said(update)}")]
        compare: Callable[[JsonNode, JsonNode, str], list[Problem]] | None = {
            "string": _strings,
            "number": _numbers,
            "const": _constants,
            "enum": _enums,
            "combined": self._combined,
            "not": self._not,
            "object": self._objects,
            "array": self._arrays,
        }.get(original.kind)
        return [] if compare is None else compare(original, update, path)

    # --- combined -----------------------------------------------------------------------------------------------------

    def _combined(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        before, after = _distinct(original.parts), _distinct(update.parts)
        if not _criterion_goes_on(original, update):
            return [_changed("COMBINED_TYPE_CHANGED", path, f"{original.criterion} became {update.criterion}")]
        found: list[Problem] = []
        if len(before) < len(after) and update.criterion == "allOf":
            found.append(_changed("PRODUCT_TYPE_EXTENDED", path, "more schemas have to hold than before"))
        if len(before) > len(after) and original.criterion in ("anyOf", "oneOf"):
            found.append(_changed("SUM_TYPE_NARROWED", path, "there are fewer alternatives than before"))
        where = f"{path}/{original.criterion}"
        goes = [
            [not self.compare(one, other, f"{where}/{number}") for other in after] for number, one in enumerate(before)
        ]
        if _matched(goes) < min(len(before), len(after)):
            found.append(_changed("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path, "not all alternatives have a counterpart"))
        return found

    def _not(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        if self.compare(update.parts[0], original.parts[0], f"{path}/not"):
            return [_changed("NOT_TYPE_EXTENDED", f"{path}/not", "more is excluded than before")]
        return []

    # --- objects ------------------------------------------------------------------------------------------------------

    def _objects(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        found: list[Problem] = []
        for name in original.properties.keys() & update.properties.keys():
            if name in update.required and name not in original.required and not update.properties[name].has_default:
                message = f"{name} is required now, and has no default"
                found.append(_changed("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}", message))
        for name in sorted(original.properties.keys() | update.properties.keys()):
            found += self._property(original, update, name, f"{path}/properties/{name}")
        found += self._dependencies(original, update, f"{path}/dependencies")
        found += self._others(original, update, f"{path}/additionalProperties", "ADDITIONAL_PROPERTIES")
        found += self._unevaluated(original, update, f"{path}/unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        return found + _limits(original, update, path, _OBJECT_LIMITS)

    def _property(self, original: JsonNode, update: JsonNode, name: str, path: str) -> list[Problem]:
        before, after = original.properties.get(name), update.properties.get(name)
        if before is not None and after is not None:
            return self.compare(before, after, path)
        if before is not None:
            return self._removed(before, update, name, path)
        assert after is not None
        return self._added(original, update, after, name, path)

    def _removed(self, before: JsonNode, update: JsonNode, name: str, path: str) -> list[Problem]:
        if _is_open(update):
            return []
        partial = _partial(update, name)
        if partial is not None:
            found = self.compare(before, partial, path)
            kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            return (
                [*found, _changed(kind, path, f"{name} does not match what further properties have to be")]
                if found
                else []
            )
        if before.kind == "false":
            return []
        return [_changed("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, f"{name} is not allowed any more")]

    def _added(self, original: JsonNode, update: JsonNode, after: JsonNode, name: str, path: str) -> list[Problem]:
        is_required = name in update.required
        if _is_open(original):
            if after.kind == "true":
                return []
            kind = "REQUIRED_PROPERTY" if is_required else "OPTIONAL_PROPERTY"
            if is_required and after.has_default:
                kind += "_WITH_DEFAULT"
            message = f"{name} may have been anything before, since further properties were allowed"
            return [_changed(f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", path, message)]
        found: list[Problem] = []
        partial = _partial(original, name)
        if partial is not None:
            found = self.compare(partial, after, path)
            if found:
                kind = "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
                found = [*found, _changed(kind, path, f"{name} does not take what further properties had to be")]
        if is_required and not after.has_default:
            message = f"{name} is required, and was not there before"
            found.append(_changed("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path, message))
        return found

    def _dependencies(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        found: list[Problem] = []
        before, after = dependent_names(original), dependent_names(update)
        for name, needed in after.items():
            where = f"{path}/{name}"
            if name not in before:
                found.append(_changed("DEPENDENCY_ARRAY_ADDED", where, f"{name} needs other properties now"))
            elif not needed <= before[name]:
                kind = "DEPENDENCY_ARRAY_EXTENDED" if needed > before[name] else "DEPENDENCY_ARRAY_CHANGED"
                found.append(_changed(kind, where, f"{name} needs other properties than before"))
        for name, one in update.dependent.items():
            if name not in original.dependent:
                found.append(_changed("DEPENDENCY_SCHEMA_ADDED", f"{path}/{name}", f"{name} needs more than before"))
            else:
                found += self.compare(original.dependent[name], one, f"{path}/{name}")
        return found

    def _others(self, original: JsonNode, update: JsonNode, path: str, kind: str) -> list[Problem]:
        if original.others_allowed != update.others_allowed:
            if update.others_allowed:
                return []
            return [_changed(f"{kind}_REMOVED", path, "what is not named is not allowed any more")]
        if original.others is None and update.others is not None:
            return [_changed(f"{kind}_NARROWED", path, "what is not named could be anything before")]
        if update.others is None:
            return []
        return self.compare(original.others, update.others, path)

    def _unevaluated(self, original: JsonNode, update: JsonNode, path: str, kind: str) -> list[Problem]:
        before, after = original.unevaluated, update.unevaluated
        if after is None or after.kind == "true" == (before.kind if before is not None else ""):
            return []
        if before is not None and before.kind == "false":
            return []
        if after.kind == "false":
            return [_changed(f"{kind}_REMOVED", path, "what is not named is not allowed any more")]
        if before is None or (before.kind == "true" and after.kind != "true"):
            return [_changed(f"{kind}_NARROWED", path, "what is not named could be anything before")]
        return [] if after.kind == "true" else self.compare(before, after, path)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def _arrays(self, original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
        found = self.compare(original.each_item, update.each_item, f"{path}/items")
        for number in range(max(len(original.items), len(update.items))):
            found += self._item(original, update, number, f"{path}/items/{number}")
        found += self._others(original, update, f"{path}/additionalItems", "ADDITIONAL_ITEMS")
        found += self._unevaluated(original, update, f"{path}/unevaluatedItems", "UNEVALUATED_ITEMS")
        if update.words.get("uniqueItems") is True and original.words.get("uniqueItems") is not True:
            found.append(_changed("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "items may not be equal any more"))
        return found + _limits(original, update, path, _ARRAY_LIMITS)

    def _item(self, original: JsonNode, update: JsonNode, number: int, path: str) -> list[Problem]:
        if number < len(original.items) and number < len(update.items):
            return self.compare(original.items[number], update.items[number], path)
        if number < len(original.items):
            before = original.items[number]
            if _is_open(update) or (_partial(update) is None and before.kind == "false"):
                return []
            partial = _partial(update)
            if partial is None:
                return [_changed("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, "the item is not allowed any more")]
            found = self.compare(before, partial, path)
            kind = "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            return [*found, _changed(kind, path, "the item is not what further items have to be")] if found else []
        after = update.items[number]
        if _is_open(original):
            if after.kind == "true":
                return []
            return [_changed("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path, "the item may have been anything before")]
        partial = _partial(original)
        found = [] if partial is None else self.compare(partial, after, path)
        kind = "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, _changed(kind, path, "the item does not take what further items had to be")] if found else []


# --- what takes no walk -----------------------------------------------------------------------------------------------

_LOWER_IS_WIDER, _HIGHER_IS_WIDER = -1, 1
_OBJECT_LIMITS = {"maxProperties": _HIGHER_IS_WIDER, "minProperties": _LOWER_IS_WIDER}
_ARRAY_LIMITS = {
    "maxItems": _HIGHER_IS_WIDER,
    "minItems": _LOWER_IS_WIDER,
    "maxContains": _HIGHER_IS_WIDER,
    "minContains": _LOWER_IS_WIDER,
}
_STRING_LIMITS = {"maxLength": _HIGHER_IS_WIDER, "minLength": _LOWER_IS_WIDER}
_NUMBER_LIMITS = {
    "maximum": _HIGHER_IS_WIDER,
    "minimum": _LOWER_IS_WIDER,
    "exclusiveMaximum": _HIGHER_IS_WIDER,
    "exclusiveMinimum": _LOWER_IS_WIDER,
}


def _changed(kind: str, path: str, message: str) -> Problem:
    return Problem(kind, path, message)


def _said(node: JsonNode) -> str:
    return node.criterion or ("integer" if node.is_integer else node.kind)


def _limits(original: JsonNode, update: JsonNode, path: str, limits: dict[str, int]) -> list[Problem]:
    found = []
    for word, wider in limits.items():
        before, after = _limit(original, word), _limit(update, word)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).upper()
        if after is None:
            continue
        if before is None:
            found.append(_changed(f"{name}_ADDED", f"{path}/{word}", f"{word} is {after}, and was not limited before"))
        elif (after - before) * wider < 0:
            how = "DECREASED" if wider == _HIGHER_IS_WIDER else "INCREASED"
            found.append(_changed(f"{name}_{how}", f"{path}/{word}", f"{word} was {before}, and is {after}"))
    return found


def _limit(node: JsonNode, word: str) -> Any:
    value = node.words.get(word)
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value


def _strings(original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
    found = _limits(original, update, path, _STRING_LIMITS)
    before, after = original.words.get("pattern"), update.words.get("pattern")
    if after is not None and before != after:
        kind = "PATTERN_ADDED" if before is None else "PATTERN_CHANGED"
        found.append(_changed(kind, f"{path}/pattern", f"the pattern is {after}"))
    return found


def _numbers(original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
    found = _limits(original, update, path, _NUMBER_LIMITS)
    before, after = _limit(original, "multipleOf"), _limit(update, "multipleOf")
    if after is not None and before != after:
        kind = "MULTIPLE_OF_ADDED" if before is None else _multiple(Decimal(str(before)), Decimal(str(after)))
        if kind:
            found.append(_changed(kind, f"{path}/multipleOf", f"multipleOf was {before}, and is {after}"))
    if update.is_integer and not original.is_integer:
        found.append(_changed("TYPE_NARROWED", path, "number became integer"))
    return found


def _multiple(before: Decimal, after: Decimal) -> str:
    if before and after % before == 0:
        return "MULTIPLE_OF_EXPANDED"
    return "" if after and before % after == 0 else "MULTIPLE_OF_CHANGED"


def _constants(original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
    if _key(original.words["const"]) == _key(update.words["const"]):
        return []
    return [_changed("ENUM_ARRAY_CHANGED", f"{path}/const", "the constant is another one")]


def _enums(original: JsonNode, update: JsonNode, path: str) -> list[Problem]:
    before = {_key(one) for one in original.words["enum"]}
    after = {_key(one) for one in update.words["enum"]}
    if before <= after:
        return []
    kind = "ENUM_ARRAY_NARROWED" if after < before else "ENUM_ARRAY_CHANGED"
    return [_changed(kind, f"{path}/enum", f"{', '.join(sorted(before - after))} is not allowed any more")]


def _criterion_goes_on(original: JsonNode, update: JsonNode) -> bool:
    if original.criterion == update.criterion or update.criterion == "anyOf":
        return True
    one_before, one_after = len(original.parts) == 1, len(update.parts) == 1
    return (
        (one_before and one_after)
        or (one_before and update.criterion == "oneOf")
        or (one_after and original.criterion == "allOf")
    )


def _is_open(node: JsonNode) -> bool:
    """Whether what is not named may be anything."""
    if not node.others_allowed or node.others is not None or node.patterns:
        return False
    return node.unevaluated is None or node.unevaluated.kind == "true"


def _partial(node: JsonNode, name: str | None = None) -> JsonNode | None:
    """What has to hold for a property, or an item, that is not named."""
    for pattern, one in node.patterns if name is not None else ():
        if re.search(pattern, name or ""):
            return one
    if node.others is not None:
        return node.others
    if node.others_allowed and node.unevaluated is not None and node.unevaluated.kind not in ("true", "false"):
        return node.unevaluated
    return None


def _distinct(parts: Iterable[JsonNode]) -> list[JsonNode]:
    kept: dict[str, JsonNode] = {}
    for one in parts:
        kept.setdefault(f"{one.kind}{one.is_integer}{_key(one.words)}", one)
    return list(kept.values())


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _matched(goes: list[list[bool]]) -> int:
    """How many rows can have a column of their own."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, is_possible in enumerate(goes[row]):
            if is_possible and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(goes)))
