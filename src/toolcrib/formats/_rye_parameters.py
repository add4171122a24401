"""The parameters of a rye tool: where their schema comes from, what is wrong with it, what could be better.

``input_schema`` wins over ``config_schema``, which wins over the ``parameters`` list; ``actions`` add one
``action`` parameter and what each of them asks for. Whether the result is a schema at all is the loader's
question; here stand the rules of the format and its advice. ``rye`` lies below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from toolcrib import schema
from toolcrib.formats import _schema_lint
from toolcrib.formats._node import Node, shown, suggestion
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Schema, Severity

_PROPERTIES: Final = (
    "name", "type", "required", "default", "description", "minimum", "maximum", "minLength", "maxLength",
    "pattern", "enum",
)  # fmt: skip
_PYTHON_TYPES: Final = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object",
    "list": "array",
}  # fmt: skip
_MANY: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ONE: Final = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_SEVERAL: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SIMPLE: Final = frozenset({"type", "default", "description", "title", "enum", "examples"})
_INSTANCES: Final[dict[str, Callable[[JsonValue], bool]]] = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
    "null": lambda value: value is None,
}
_SNAKE: Final = re.compile(r"[a-z_][a-z0-9_]*")
_RANGE: Final = re.compile(r"(?<![\w.-])-?[0-9]+(?:\.[0-9]+)?\s*(?:-|–|\.\.|to)\s*-?[0-9]+(?![\w-])")
_LIST: Final = re.compile(r"\bone of\b|\b\w+(?:\s?\|\s?\w+)+", re.IGNORECASE)
_PATH_LIKE: Final = re.compile(r"(?:^|_)(?:path|file|filename|filepath|dir|directory|folder)(?:$|_)")


def read(
    input_schema: Node | None, config_schema: Node | None, parameters: Node | None, actions: Node | None
) -> Schema | None:
    """The schema of the arguments, checked; None where the declaration has none."""
    documents: list[tuple[Node, JsonObject]] = []
    nodes = (input_schema, config_schema, parameters, actions)
    patterns = sum(schema.patterns_in(node.value) for node in nodes if node is not None)
    for node in (input_schema, config_schema):
        if node is not None and (document := _as_written(node, patterns)) is not None:
            documents.append((node, document))
    if parameters is not None and (document := _from_list(parameters, patterns)) is not None:
        documents.append((parameters, document))
    for node, document in documents[1:]:
        if document != documents[0][1]:
            node.warn(
                "rye.schema.precedence",
                f"differs from {documents[0][0].place}, which counts",
                hint="keep one of them, or make them the same",
            )
    base = documents[0][1] if documents else None
    if actions is not None:
        base = _with_actions(actions, base or {}, patterns)
    return Schema.of(base) if base is not None else None


def of_actions(
    input_schema: Node | None, config_schema: Node | None, parameters: Node | None, actions: Node | None
) -> dict[str, list[str]]:
    """The parameters that belong to single actions, by action; those of the whole tool are not among them."""
    if actions is None or actions.kind != "object":
        return {}
    shared: set[str] = set()
    for node in (input_schema, config_schema):
        properties = node.get("properties") if node is not None else None
        if properties is not None:
            shared.update(name for name, _ in properties.members())
            break
    else:
        shared.update(_names(parameters))
    found = {
        name: [own for own in _names(action.get("parameters")) if own not in shared]
        for name, action in actions.members()
    }
    return found if any(found.values()) else {}


def _names(parameters: Node | None) -> list[str]:
    items = parameters.items() if parameters is not None else ()
    names = [item.get("name") for item in items if item.kind == "object"]
    return [str(name.value) for name in names if name is not None and name.kind == "string"]


def output(node: Node | None) -> Schema | None:
    """The schema of the results."""
    document = _as_written(node, schema.patterns_in(node.value)) if node is not None else None
    return Schema.of(document) if document is not None else None


def _as_written(node: Node, patterns: int) -> JsonObject | None:
    if node.value is None:
        return None
    if node.kind != "object":
        node.error("rye.schema.type-valid", f"must be a JSON Schema object (got {node.kind})")
        return None
    for part in _schemas(node):
        _check(part, patterns)
    _schema_lint.report(node, required=_schema_lint.Required.NOWHERE)
    return node.value if isinstance(node.value, dict) else None


def _schemas(node: Node) -> Iterator[Node]:
    """Every schema inside a schema; what stands in ``default`` or ``enum`` is none."""
    stack = [node]
    while stack:
        part = stack.pop()
        if part.kind != "object":
            continue
        yield part
        below: list[Node] = []
        for key, member in part.members():
            if key in _MANY:
                below += [inner for _, inner in member.members()]
            elif key in _SEVERAL:
                below += member.items()
            elif key in _ONE:
                below.append(member)
        stack += reversed(below)


def _check(part: Node, patterns: int, parameter: str | None = None) -> None:
    """The rules of the format for one schema, or for one parameter of a list.

    ``patterns`` is how many the declaration has: they share what compiling them may take.
    """
    if (kind := part.get("type")) is not None:
        _check_type(kind, f"the parameter {shown(parameter)}: " if parameter else "")
    pattern = part.get("pattern")
    if pattern is not None and pattern.kind == "string":
        for flaw in schema.flaws({"pattern": pattern.value}, patterns=patterns):
            pattern.error(
                "rye.schema.pattern-valid", f"{flaw.message} (got {shown(pattern.value)})", hint=flaw.hint
            )
    elif pattern is not None:
        pattern.error("rye.schema.pattern-valid", f"must be a string (got {pattern.kind})")
    enum = part.get("enum")
    if enum is not None and (enum.kind != "array" or not enum.value):
        what = (
            "must have at least one value" if enum.kind == "array" else f"must be an array (got {enum.kind})"
        )
        enum.error("rye.schema.enum-nonempty", what)
    required, properties = part.get("required"), part.get("properties")
    if required is not None and required.kind == "array":
        known = properties.value if properties is not None and properties.kind == "object" else {}
        for name in required.items():
            if name.kind == "string" and name.value not in known and properties is not None:
                name.warn(
                    "rye.schema.required-defined",
                    f"{shown(name.value)} is required and not among the properties",
                    hint="define it, or take it out of required",
                )
    if part.get("default") is not None:
        _check_default(part, patterns)


def _check_type(kind: Node, whom: str) -> None:
    names = kind.value if kind.kind == "array" and kind.value else [kind.value]
    wrong = [name for name in names if not isinstance(name, str) or name not in schema.TYPES]
    if wrong:
        meant = _PYTHON_TYPES.get(wrong[0]) if isinstance(wrong[0], str) else None
        kind.error(
            "rye.schema.type-valid",
            f"{whom}not a JSON Schema type (got {shown(wrong[0])})",
            hint=f'write "{meant}"' if meant else f"one of {', '.join(schema.TYPES)}",
        )


def _check_default(part: Node, patterns: int) -> None:
    default = part.here("default")
    assert isinstance(part.value, dict)
    rules = {key: value for key, value in part.value.items() if key not in ("required", "name")}
    if rules.keys() <= _SIMPLE:  # nearly always: no need to build a validator for it
        kind, enum = rules.get("type"), rules.get("enum")
        fits = not isinstance(kind, str) or kind not in _INSTANCES or _INSTANCES[kind](default.value)
        if fits and (not isinstance(enum, list) or default.value in enum):
            return
    if schema.flaws(rules, patterns=patterns):
        return  # reported as what it is
    for complaint in schema.complaints(Schema.of(rules), default.value)[:1]:
        default.warn("rye.schema.default-invalid", f"does not fit its own schema: {complaint}")


# -- the parameters list ------------------------------------------------------------------------------------


def _from_list(node: Node, patterns: int) -> JsonObject | None:
    if node.value is None:
        return None
    if node.kind != "array":
        node.error(
            "rye.schema.params-list",
            f"must be a list of parameters (got {node.kind})",
            hint="a whole JSON Schema goes into input_schema",
        )
        return None
    properties: JsonObject = {}
    required: list[str] = []
    for item in node.items():
        name = _parameter_name(item, properties)
        if name is None:
            continue
        for key, member in item.members():
            if key not in _PROPERTIES:
                meant = suggestion(key, _PROPERTIES)
                member.say(
                    "rye.schema.params-keys",
                    f"unknown parameter property {key}",
                    severity=Severity.WARNING,
                    hint=f'did you mean "{meant}"?'
                    if meant
                    else "it has no effect; a whole schema goes into input_schema",
                )
        _check(item, patterns, name)
        properties[name] = {
            key: value
            for key, value in item.value.items()
            if key in _PROPERTIES and key not in ("name", "required")
        }
        is_required = item.get("required")
        if is_required is not None and is_required.kind != "boolean":
            is_required.error(
                "rye.schema.params-keys", f"must be true or false (got {shown(is_required.value)})"
            )
        elif is_required is not None and is_required.value:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _parameter_name(item: Node, taken: JsonObject) -> str | None:
    if item.kind != "object":
        item.error("rye.schema.params-list", f"must be an object (got {item.kind})")
        return None
    name = item.get("name")
    if name is None or name.kind != "string" or not name.value:
        item.error("rye.schema.params-keys", "name is required", hint='give the parameter a "name"')
        return None
    if name.value in taken:
        name.error("rye.schema.params-list", f"{shown(name.value)} is already taken")
        return None
    return str(name.value)


# -- actions ------------------------------------------------------------------------------------------------


def _with_actions(actions: Node, base: JsonObject, patterns: int) -> JsonObject | None:
    """One function for all actions: which parameters count follows from ``action``."""
    if actions.value is None:
        return base or None
    if actions.kind != "object" or not actions.value:
        actions.error("rye.yaml.actions", f"must be an object with at least one action (got {actions.kind})")
        return None
    if schema.flaws(base):
        return base  # the loader says what is wrong with it
    specs: dict[str, list[JsonValue]] = {}
    rules: list[tuple[str, JsonObject]] = []
    told: list[str] = []
    for name, action in actions.members():
        if action.kind != "object":
            action.error("rye.yaml.actions", f"must be an object (got {action.kind})")
            continue
        description = action.get("description")
        if description is not None and description.kind == "string":
            told.append(f"{name}: {description.value}")
        listed = action.get("parameters")
        own = _from_list(listed, patterns) if listed is not None else None
        own = own or {"properties": {}, "required": []}
        if listed is not None and "action" in own["properties"]:
            listed.error(
                "rye.yaml.actions",
                'no parameter may be called "action"',
                hint="that name says which action is meant; rename the parameter",
            )
        for parameter, spec in own["properties"].items():
            known = specs.setdefault(parameter, [])
            if spec not in known:
                known.append(spec)
        rules.append((name, own))
    properties = dict(base.get("properties") or {})
    for parameter, known in specs.items():
        if parameter not in properties:
            properties[parameter] = known[0] if len(known) == 1 else {"anyOf": known}
    action_property: JsonObject = {"type": "string", "enum": list(actions.value)}
    if told:
        action_property["description"] = "; ".join(told)
    whole: JsonObject = {key: value for key, value in base.items() if key not in ("properties", "required")}
    return {
        "type": "object",
        **whole,
        "properties": {"action": action_property, **properties},
        "required": ["action", *(name for name in base.get("required") or [] if name != "action")],
        "allOf": [*(base.get("allOf") or []), *(_when(name, own, specs) for name, own in rules)],
    }


def _when(name: str, own: JsonObject, specs: dict[str, list[JsonValue]]) -> JsonObject:
    then: JsonObject = {"required": own["required"]}
    different = {key: spec for key, spec in own["properties"].items() if len(specs[key]) > 1}
    if different:  # other actions mean something else by the same name
        then["properties"] = different
    return {"if": {"properties": {"action": {"const": name}}, "required": ["action"]}, "then": then}


# -- advice -------------------------------------------------------------------------------------------------


def advise(
    input_schema: Node | None, config_schema: Node | None, parameters: Node | None, *, snake_case: bool
) -> None:
    """What would make the parameters clearer to people and models."""
    for node in (input_schema, config_schema):
        if node is not None and node.kind == "object":
            properties = node.get("properties")
            listed = node.here("required").items()
            required = frozenset(item.value for item in listed if item.kind == "string")
            for name, part in properties.members() if properties is not None else ():
                _advise_one(part, name, is_required=name in required, snake_case=snake_case)
            return
    for part in parameters.items() if parameters is not None else ():
        named = part.value.get("name") if part.kind == "object" else None
        if isinstance(named, str):
            _advise_one(part, named, is_required=part.value.get("required"), snake_case=snake_case)


def _advise_one(part: Node, name: str, *, is_required: bool | None, snake_case: bool) -> None:
    if part.kind != "object":
        return
    value: JsonObject = part.value
    description = value.get("description")
    lacking = [] if description else ["description"]
    if is_required is None:
        lacking.append("required status")
    elif not is_required and "default" not in value:
        lacking.append("default")
    if lacking:
        part.warn(
            "rye.lint.descriptions",
            f"the parameter {shown(name)} has no {' and no '.join(lacking)}",
            hint="models choose and fill parameters by what is said about them",
        )
    if snake_case and not _SNAKE.fullmatch(name):
        part.warn("rye.lint.names", f"the parameter {shown(name)} is not in snake_case")
    if isinstance(description, str):
        _advise_constraint(part, value, name, description)


def _advise_constraint(part: Node, value: JsonObject, name: str, description: str) -> None:
    kind = value.get("type")
    if kind in ("integer", "number"):
        bounded = value.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum"}
        if not bounded and (found := _RANGE.search(description)):
            part.inform(
                "rye.lint.constraints",
                f"the parameter {shown(name)} states a range ({found.group()}) in words only",
                hint="add minimum and maximum",
            )
    elif kind == "string" and not value.keys() & {"enum", "pattern", "const"} and _LIST.search(description):
        part.inform(
            "rye.lint.constraints",
            f"the parameter {shown(name)} lists its values in words only",
            hint="add enum or pattern",
        )


def path_like(document: JsonObject) -> Iterator[str]:
    """The parameters that name files or folders, by their names."""
    properties = document.get("properties")
    for name, part in properties.items() if isinstance(properties, dict) else ():
        if isinstance(part, dict) and part.get("type", "string") == "string" and _PATH_LIKE.search(name):
            yield name
