"""Large OpenAPI documents, written the way public ones are: a code host's and a payment service's.

Both are generated, and always the same. They have what such documents have: hundreds of operations, objects
that refer to each other in circles, ``allOf``, ``oneOf``, ``anyOf``, ``nullable``, read-only members,
parameters of every place and style, forms, parts, and a few operations that nobody can express.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
PATTERNS = {
    "^[0-9a-f]{40}$": ["0" * 40, "da39a3ee5e6b4b0d3255bfef95601890afd80709"],
    "^[A-Za-z0-9_.-]{1,100}$": ["toolcrib", "a.b-c_d", "X"],
    "^#?[0-9a-fA-F]{6}$": ["#ff00aa", "c0ffee"],
    "^[a-z]{2,3}_[A-Za-z0-9]{8,24}$": ["cus_9s6XKzkNRiz8", "in_1MtHbELkdIwHu7ix"],
    "^[a-z]{3}$": ["eur", "usd"],
}
"""Every pattern of the documents, with texts that fit."""


def ref(name: str, kind: str = "schemas") -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def obj(properties: Json, required: tuple[str, ...] = (), **more: Any) -> Json:
    made: Json = {"type": "object", "properties": properties, **more}
    if required:
        made["required"] = list(required)
    return made


def text(**more: Any) -> Json:
    return {"type": "string", **more}


def many(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def body(schema: Json, kind: str = "application/json", *, required: bool = True, **more: Any) -> Json:
    return {"required": required, "content": {kind: {"schema": schema, **more}}}


def answer(schema: Json) -> Json:
    return {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}}


# -- a code host: OpenAPI 3.0 -------------------------------------------------------------------------------

_RESOURCES = (
    "actions", "archives", "artifacts", "branches", "caches", "checks", "codespaces", "collaborators",
    "comments", "commits", "contents", "dependabot", "deployments", "environments", "events", "forks",
    "gists", "hooks", "installations", "invitations", "issues", "jobs", "keys", "labels", "languages",
    "licenses", "members", "merges", "migrations", "milestones", "notifications", "orgs", "packages",
    "pages", "permissions", "projects", "protections", "pulls", "reactions", "refs", "releases",
    "repositories", "reviewers", "reviews", "rules", "runners", "runs", "scans", "secrets", "stars",
    "statuses", "subscriptions", "tags", "teams", "topics", "traffic", "trees", "users", "variables",
    "watchers", "wikis", "workflows",
)  # fmt: skip


def code_host(base: str) -> Json:
    paths: Json = {}
    for number, resource in enumerate(_RESOURCES):
        paths |= _resource(resource, number)
    paths |= _specials()
    return {
        "openapi": "3.0.3",
        "info": {"title": "Code host", "version": "1.1.4", "description": "Everything about repositories."},
        "servers": [
            {"url": base + "/{version}", "variables": {"version": {"default": "v3", "enum": ["v3"]}}}
        ],
        "security": [{"token": []}, {}],
        "tags": [{"name": name} for name in _RESOURCES],
        "paths": paths,
        "components": {
            "parameters": _host_parameters(),
            "schemas": _host_schemas(),
            "responses": {"missing": {"description": "Not found"}},
            "requestBodies": {"label": body(ref("label-input"))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _host_parameters() -> Json:
    return {
        "owner": {"name": "owner", "in": "path", "required": True, "schema": ref("slug")},
        "repo": {"name": "repo", "in": "path", "required": True, "schema": ref("slug")},
        "page": {"name": "page", "in": "query", "schema": {"type": "integer", "minimum": 1, "default": 1}},
        "per_page": {
            "name": "per_page",
            "in": "query",
            "description": "Results per page (max 100).",
            "schema": {
                "type": "integer",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 100,
                "default": 30,
            },
        },
        "version": {
            "name": "X-Api-Version",
            "in": "header",
            "required": True,
            "schema": text(enum=["2022-11-28", "2026-03-10"]),
        },
        "accept": {"name": "Accept", "in": "header", "schema": text()},
        "session": {"name": "session_hint", "in": "cookie", "schema": text(maxLength=20)},
    }


def _host_schemas() -> Json:
    return {
        "slug": text(pattern="^[A-Za-z0-9_.-]{1,100}$", example="toolcrib"),
        "sha": text(pattern="^[0-9a-f]{40}$"),
        "label-name": text(minLength=1, maxLength=50),
        "simple-user": obj(
            {
                "login": text(),
                "id": {"type": "integer", "format": "int64", "readOnly": True},
                "name": text(nullable=True),
                "site_admin": {"type": "boolean"},
                "starred_at": text(format="date-time", example="2026-01-01T00:00:00Z"),
            },
            ("login", "id"),
        ),
        "nullable-user": {"nullable": True, "allOf": [ref("simple-user")]},
        "repository": obj(
            {
                "id": {"type": "integer", "readOnly": True},
                "name": ref("slug"),
                "owner": ref("simple-user"),
                "parent": ref("repository"),
                "template": {"nullable": True, "allOf": [ref("repository")]},
                "topics": many(text(maxLength=35)),
                "license": ref("license"),
                "permissions": obj({"admin": {"type": "boolean"}, "push": {"type": "boolean"}}, ("admin",)),
                "pushed_at": text(format="date-time", nullable=True),
            },
            ("id", "name", "owner"),
        ),
        "license": obj({"key": text(), "url": text(nullable=True, format="uri")}, ("key",)),
        "issue": obj(
            {
                "number": {"type": "integer", "readOnly": True},
                "title": {"oneOf": [text(), {"type": "integer"}]},
                "labels": many({"oneOf": [text(), ref("label-input")]}),
                "assignee": ref("nullable-user"),
                "milestone": ref("milestone"),
                "repository": ref("repository"),
                "state": text(enum=["open", "closed"], nullable=True),
            },
            ("number", "title"),
        ),
        "milestone": obj(
            {"title": text(), "creator": ref("nullable-user"), "issues": many(ref("issue"))}, ("title",)
        ),
        "label-input": obj(
            {
                "name": ref("label-name"),
                "color": text(pattern="^#?[0-9a-fA-F]{6}$"),
                "description": text(nullable=True, maxLength=100),
            },
            ("name",),
            additionalProperties=False,
        ),
        "tree-entry": obj(
            {
                "path": text(),
                "mode": text(enum=["100644", "100755", "040000"]),
                "sha": {"nullable": True, "allOf": [ref("sha")]},
                "entries": many(ref("tree-entry"), maxItems=3),
            },
            ("path", "mode"),
        ),
        "timestamps": obj(
            {"created_at": text(readOnly=True), "due_on": text(nullable=True)}, ("created_at",)
        ),
        "check-output": {
            "allOf": [
                ref("timestamps"),
                obj({"title": text(), "summary": text(), "annotations": many(ref("annotation"))}, ("title",)),
            ]
        },
        "annotation": obj(
            {
                "path": text(),
                "line": {"type": "integer", "minimum": 1},
                "level": text(enum=["notice", "warning", "failure"]),
                "fix": ref("annotation"),
            },
            ("path", "line"),
        ),
        "rule": {
            "oneOf": [ref("rule-pattern"), ref("rule-size")],
            "discriminator": {"propertyName": "type", "mapping": {"pattern": "#/x", "size": "#/y"}},
        },
        "rule-pattern": obj(
            {
                "type": text(enum=["pattern"]),
                "operator": text(enum=["starts_with", "ends_with"]),
                "value": text(),
            },
            ("type", "operator", "value"),
        ),
        "rule-size": obj(
            {
                "type": text(enum=["size"]),
                "max_bytes": {"type": "integer", "minimum": 0},
                "rules": many(ref("rule")),
            },
            ("type", "max_bytes"),
        ),
    }


def _resource(name: str, number: int) -> Json:
    """The twelve operations that each resource has, with some variety in their arguments."""
    one = f"{name.removesuffix('s')}_id"
    repo = [ref("owner", "parameters"), ref("repo", "parameters")]
    paging = [ref("page", "parameters"), ref("per_page", "parameters")]
    listing = {
        "tags": [name],
        "operationId": f"{name}/list",
        "summary": f"List {name}",
        "description": f"Lists the {name} of a repository, the newest first." + " More about that." * 20,
        "parameters": [
            *paging,
            {"name": "labels", "in": "query", "style": "form", "explode": False, "schema": many(text())},
            {"name": "state", "in": "query", "schema": text(enum=["open", "closed", "all"], default="open")},
            {"name": "since", "in": "query", "schema": text(format="date-time")},
        ],
        "responses": answer(many(ref("issue"))),
    }
    created = (ref("issue"), ref("check-output"), ref("milestone"), ref("rule"))[number % 4]
    collection = {
        "parameters": repo,
        "get": listing,
        "post": {
            "tags": [name],
            "operationId": f"{name}/create",
            "summary": f"Create one of the {name}",
            "parameters": [ref("version", "parameters")],
            "requestBody": body(created),
            "responses": answer(created),
        },
        "delete": {
            "tags": [name],
            "operationId": f"{name}/clear",
            "summary": f"Remove all {name}",
            "requestBody": body(obj({"names": many(text(), minItems=1)}, ("names",))),
            "responses": {"204": {"description": "Gone"}},
        },
    }
    item = {
        "parameters": [*repo, {"name": one, "in": "path", "required": True, "schema": {"type": "integer"}}],
        "get": {
            "tags": [name],
            "operationId": f"{name}/get",
            "summary": f"One of the {name}",
            "parameters": [ref("session", "parameters"), ref("accept", "parameters")],
            "responses": answer(ref("repository")) | {"404": ref("missing", "responses")},
        },
        "patch": {
            "tags": [name],
            "operationId": f"{name}/update",
            "requestBody": body(
                obj(
                    {
                        "title": text(nullable=True),
                        "body": text(),
                        one: {"type": "integer", "description": "The same name as in the path."},
                        "assignees": many(text()),
                        "priority": {"type": "number", "minimum": 0, "maximum": 1, "nullable": True},
                    }
                ),
                required=False,
            ),
            "responses": answer(ref("issue")),
        },
        "delete": {
            "tags": [name],
            "operationId": f"{name}/delete",
            "responses": {"204": {"description": "Gone"}},
        },
        "head": {
            "tags": [name],
            "operationId": f"{name}/check",
            "responses": {"200": {"description": "There"}},
        },
    }
    labels = {
        "parameters": [*repo, {"name": "name", "in": "path", "required": True, "schema": ref("label-name")}],
        "put": {
            "tags": [name],
            "requestBody": ref("label", "requestBodies"),
            "responses": answer(ref("label-input")),
        },
        "get": {
            "tags": [name],
            "deprecated": True,
            "parameters": [
                {"name": "X-Trace", "in": "header", "schema": many(text(enum=["a", "b", "c"]))},
                {
                    "name": "fields",
                    "in": "query",
                    "style": "pipeDelimited",
                    "explode": False,
                    "schema": many(text(enum=["id", "name", "owner"])),
                },
            ],
            "responses": answer(ref("label-input")),
        },
    }
    search = {
        "get": {
            "tags": [name],
            "operationId": f"{name}/search",
            "parameters": [
                {
                    "name": "q",
                    "in": "query",
                    "required": True,
                    "schema": text(minLength=1),
                    "allowReserved": True,
                },
                {
                    "name": "sort",
                    "in": "query",
                    "style": "spaceDelimited",
                    "explode": False,
                    "schema": many(text(enum=["stars", "forks", "updated"])),
                },
                {
                    "name": "where",
                    "in": "query",
                    "content": {
                        "application/json": {
                            "schema": obj({"language": text(nullable=True), "size": {"type": "integer"}})
                        }
                    },
                },
                *paging,
            ],
            "responses": answer(obj({"total_count": {"type": "integer"}, "items": many(ref("repository"))})),
        }
    }
    return {
        f"/repos/{{owner}}/{{repo}}/{name}": collection,
        f"/repos/{{owner}}/{{repo}}/{name}/{{{one}}}": item,
        f"/repos/{{owner}}/{{repo}}/{name}/labels/{{name}}": labels,
        f"/search/{name}": search,
    }


def _specials() -> Json:
    """What only some operations have, those that are lost among them."""
    repo = [ref("owner", "parameters"), ref("repo", "parameters")]
    base, head = (
        {"name": name, "in": "path", "required": True, "schema": text()} for name in ("base", "head")
    )
    return {
        "/repos/{owner}/{repo}/compare/{base}...{head}": {
            "parameters": repo,
            "get": {
                "operationId": "repos/compare",
                "parameters": [base, head],
                "responses": answer(ref("issue")),
            },
        },
        "/repos/{owner}/{repo}/git/trees": {
            "parameters": repo,
            "post": {
                "operationId": "git/create-tree",
                "requestBody": body(
                    obj({"tree": many(ref("tree-entry"), minItems=1), "base_tree": ref("sha")}, ("tree",))
                ),
                "responses": answer(ref("tree-entry")),
            },
        },
        "/repos/{owner}/{repo}/rules": {
            "parameters": repo,
            "put": {
                "operationId": "repos/set-rules",
                "requestBody": body(many(ref("rule"))),
                "responses": {},
            },
        },
        "/markdown/raw": {
            "post": {
                "operationId": "markdown/raw",
                "requestBody": body(text(), "text/plain"),
                "responses": {},
            }
        },
        "/uploads/{name}": {
            "post": {
                "operationId": "uploads/asset",
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": text()}],
                "requestBody": body(text(format="binary"), "application/octet-stream"),
                "responses": {},
            }
        },
        "/colours/{matrix}/{label}/{plain}": {
            "get": {
                "operationId": "meta/colours",
                "parameters": [
                    {
                        "name": "matrix",
                        "in": "path",
                        "required": True,
                        "style": "matrix",
                        "explode": True,
                        "schema": many(text(minLength=1)),
                    },
                    {
                        "name": "label",
                        "in": "path",
                        "required": True,
                        "style": "label",
                        "schema": many({"type": "integer"}),
                    },
                    {
                        "name": "plain",
                        "in": "path",
                        "required": True,
                        "explode": True,
                        "schema": obj(
                            {"r": {"type": "integer"}, "g": {"type": "integer"}},
                            ("r", "g"),
                            additionalProperties=False,
                        ),
                    },
                    {
                        "name": "spread",
                        "in": "query",
                        "schema": obj({"alpha": {"type": "number"}, "mode": text()}),
                    },
                    {
                        "name": "closed",
                        "in": "query",
                        "explode": False,
                        "schema": obj({"x": {"type": "integer"}, "y": {"type": "integer"}}),
                    },
                    {
                        "name": "X-Pairs",
                        "in": "header",
                        "explode": True,
                        "schema": obj(
                            {"a": {"type": "integer"}, "b": {"type": "boolean"}}, additionalProperties=False
                        ),
                    },
                ],
                "responses": {},
            }
        },
        "/legacy/xml": {
            "post": {
                "operationId": "legacy/xml",
                "requestBody": body(obj({}), "application/xml"),
                "responses": {},
            }
        },
        "/legacy/remote": {
            "get": {
                "operationId": "legacy/remote",
                "parameters": [{"name": "a", "in": "query", "schema": {"$ref": "other.yaml#/components/x"}}],
                "responses": {},
            }
        },
        "/legacy?mode=old": {"get": {"operationId": "legacy/query", "responses": {}}},
    }


HOST_LOSSES = {
    "POST /legacy/xml": "openapi.body.media-type",
    "GET /legacy/remote": "openapi.reference.remote",
    "GET /legacy?mode=old": "openapi.path.shape",
}

# -- a payment service: OpenAPI 3.1 -------------------------------------------------------------------------

_OBJECTS = (
    "account", "application_fee", "balance_transaction", "bank_account", "card", "charge", "coupon",
    "credit_note", "customer", "discount", "dispute", "event", "file", "invoice", "invoice_item",
    "line_item", "mandate", "order", "payment_intent", "payment_link", "payment_method", "payout", "plan",
    "price", "product", "promotion_code", "quote", "refund", "review", "setup_intent", "shipping_rate",
    "source", "subscription", "subscription_item", "tax_id", "tax_rate", "token", "topup", "transfer",
)  # fmt: skip


def payments(base: str) -> Json:
    paths: Json = {}
    for number, name in enumerate(_OBJECTS):
        paths |= _payment_paths(name, number)
    paths |= {
        "/v1/files": {
            "post": {
                "operationId": "PostFiles",
                "requestBody": body(
                    obj(
                        {
                            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                            "purpose": text(enum=["dispute_evidence", "identity_document"]),
                            "expand": many(text()),
                            "link": obj({"create": {"type": "boolean"}, "note": text()}, ("create",)),
                        },
                        ("file", "purpose"),
                    ),
                    "multipart/form-data",
                ),
                "responses": answer(ref("file")),
            }
        },
        "/v2/events/{id}": {
            "put": {
                "operationId": "PutEvent",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": ref("id")}],
                "requestBody": body(
                    {
                        "type": ["object", "null"],
                        "properties": {
                            "kind": {"const": "ping"},
                            "pair": {
                                "prefixItems": [text(), {"type": "integer"}],
                                "type": "array",
                                "maxItems": 2,
                            },
                        },
                        "required": ["kind"],
                    }
                ),
                "responses": answer(ref("event")),
            }
        },
    }
    schemas = {name: _payment_object(name, number) for number, name in enumerate(_OBJECTS)}
    schemas["id"] = text(pattern="^[a-z]{2,3}_[A-Za-z0-9]{8,24}$")
    schemas["metadata"] = {"type": "object", "additionalProperties": text(maxLength=500)}
    schemas["range"] = obj(
        {name: {"type": "integer"} for name in ("gt", "gte", "lt", "lte")}, additionalProperties=False
    )
    schemas["address"] = obj(
        {
            "line1": {"type": ["string", "null"]},
            "city": text(maxLength=50),
            "country": text(minLength=2, maxLength=2),
        }
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Payments", "version": "2026-06-30"},
        "servers": [{"url": base + "/"}],
        "security": [{"basicAuth": []}, {"bearerAuth": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basicAuth": {"type": "http", "scheme": "basic"},
                "bearerAuth": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _payment_object(name: str, number: int) -> Json:
    """An object with members that are an id or, expanded, the other object: nearly all lead to nearly all."""
    others = [_OBJECTS[(number + step) % len(_OBJECTS)] for step in (1, 5, 11)]
    properties: Json = {
        "id": ref("id"),
        "object": text(enum=[name]),
        "created": {"type": "integer"},
        "livemode": {"type": "boolean"},
        "metadata": {"$ref": "#/components/schemas/metadata", "description": "Set of key-value pairs."},
        "amount": {"type": ["integer", "null"]},
    }
    for other in others:
        properties[other] = {"anyOf": [text(maxLength=5000), ref(other)], "description": f"The {other}."}
    properties["lines"] = obj({"data": many(ref(others[0])), "has_more": {"type": "boolean"}}, ("data",))
    return obj(properties, ("id", "object"))


def _payment_paths(name: str, number: int) -> Json:
    plural = f"{name}s"
    expand = {"name": "expand", "in": "query", "style": "deepObject", "explode": True, "schema": many(text())}
    one = {"name": name, "in": "path", "required": True, "schema": ref("id"), "description": f"The {name}."}
    deep = {
        key: {"style": "deepObject", "explode": True}
        for key in ("metadata", "address", "items", "expand", "when")
    }
    fields: Json = {
        "amount": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "currency": text(pattern="^[a-z]{3}$"),
        "description": {"anyOf": [text(maxLength=500), text(enum=[""])]},
        "metadata": {"anyOf": [ref("metadata"), text(enum=[""])]},
        "address": ref("address"),
        "items": many(
            obj(
                {
                    "price": ref("id"),
                    "quantity": {"type": "integer", "minimum": 1},
                    "tax_rates": many(text(minLength=1)),
                },
                ("price",),
            ),
            maxItems=4,
        ),
        "expand": many(text(minLength=1), maxItems=4),
        "when": {"anyOf": [{"type": "integer"}, ref("range")]},
        "ids": many(text(minLength=1)),
        "capture": {"type": "boolean"},
    }
    required = ("amount", "currency") if number % 2 else ()
    return {
        f"/v1/{plural}": {
            "get": {
                "operationId": f"Get{plural.title().replace('_', '')}",
                "tags": [name],
                "parameters": [
                    {
                        "name": "created",
                        "in": "query",
                        "style": "deepObject",
                        "explode": True,
                        "schema": {"anyOf": [ref("range"), {"type": "integer"}]},
                    },
                    {
                        "name": "limit",
                        "in": "query",
                        "schema": {"type": "integer", "exclusiveMinimum": 0, "maximum": 100},
                    },
                    {"name": "starting_after", "in": "query", "schema": ref("id")},
                    {
                        "name": "statuses[]",
                        "in": "query",
                        "schema": many(text(enum=["open", "paid", "void"])),
                    },
                    {"name": "Idempotency-Key", "in": "header", "schema": text(minLength=1, maxLength=255)},
                    expand,
                ],
                "responses": answer(
                    obj({"data": many(ref(name)), "has_more": {"type": "boolean"}}, ("data",))
                ),
            },
            "post": {
                "operationId": f"Post{plural.title().replace('_', '')}",
                "tags": [name],
                "description": f"<p>Creates a new {name}.</p>",
                "requestBody": body(
                    obj(fields, required, additionalProperties=False),
                    "application/x-www-form-urlencoded",
                    required=bool(required),
                    encoding=deep,
                ),
                "responses": answer(ref(name)),
            },
        },
        f"/v1/{plural}/{{{name}}}": {
            "get": {
                "operationId": f"Get{plural.title().replace('_', '')}ById",
                "tags": [name],
                "parameters": [one, expand],
                "responses": answer(ref(name)),
            },
            "post": {
                "operationId": f"Post{plural.title().replace('_', '')}ById",
                "tags": [name],
                "parameters": [one],
                "requestBody": body(
                    obj({key: fields[key] for key in ("description", "metadata", "expand")}),
                    "application/x-www-form-urlencoded",
                    required=False,
                    encoding=deep,
                ),
                "responses": answer(ref(name)),
            },
            "delete": {
                "operationId": f"Delete{plural.title().replace('_', '')}ById",
                "tags": [name],
                "parameters": [one],
                "responses": answer(obj({"id": ref("id"), "deleted": {"const": True}})),
            },
        },
        f"/v2/{plural}/{{{name}}}/adjust": {
            "post": {
                "tags": [name],
                "parameters": [one],
                "requestBody": body(
                    {
                        "allOf": [
                            obj(
                                {
                                    "reason": text(enum=["duplicate", "fraudulent"]),
                                    "note": {"type": ["string", "null"]},
                                },
                                ("reason",),
                            ),
                            obj({"related": {"oneOf": [ref("id"), many(ref("id"))]}, "to": ref("address")}),
                        ]
                    }
                ),
                "responses": answer(ref(name)),
            },
        },
    }
