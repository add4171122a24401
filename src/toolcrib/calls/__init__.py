"""One call, understood: checked arguments, the command they become, the reply that comes back.

Everything here is pure. It reads ``Tool`` records and knows no format; the engine and the runtimes lie below.
"""
