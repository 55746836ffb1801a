"""Headers that both HAProxy and the API name. Imports nothing: HAProxy is launched with the standard library alone."""

TIMEOUT_HEADER = "x-request-timeout-seconds"
"""A request's deadline, as clients write it."""
PASSED_TIMEOUT_HEADER = "x-warmlane-timeout-seconds"
"""The same as HAProxy hands it on, because Ray acts on the clients' one itself."""
