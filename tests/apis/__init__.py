"""Two large OpenAPI documents in the style of real ones, arguments for their tools, and a server that checks
every request by the same document. Nothing here uses what it checks."""
