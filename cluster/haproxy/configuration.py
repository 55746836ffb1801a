"""What becomes of the configuration that Ray generates for HAProxy, where no setting of Ray changes it.

- It binds HAProxy's metrics and stats ports on all interfaces. Only the API may listen beyond loopback, and it alone,
  while Ray would bind the HTTP ports of the replicas behind it to the same host.
- Where HAProxy answers itself, it does so in HTML or plain text; the API's clients read JSON (33b).
- Ray ends a request by the header X-Request-Timeout-Seconds itself: a stream breaks off, and the error is plain text.
  The ingress keeps that deadline, so it gets the header under a name that Ray does not know.
- It reads some headers as UTF-8 (X-Request-Id, X-Session-Id, the trace context, a model of its own multiplexing) and
  fails in plain text where they are none.
- It lets a client's header keep it from noticing that the client has left.
- It hands on methods and upgrades that the ingress's server refuses in plain text.
- It asks for splicing. If a body came in a packet of its own and the client leaves before the answer begins, HAProxy
  (2.8.25 at least) then spins and never tells the server (24).
"""

import re

from cluster.api.header_names import PASSED_TIMEOUT_HEADER, TIMEOUT_HEADER

_BIND = re.compile(r"^(\s*bind\s+)\S*:(\d+)", re.MULTILINE)
_SPLICE = re.compile(r"^\s*option splice-\w+\n", re.MULTILINE)
_ERROR_FILE = re.compile(r"^\s*errorfile .*\n", re.MULTILINE)
_NO_APPLICATION = re.compile(r"^(backend default_backend\n\s*)http-request return status 404 .*$", re.MULTILINE)
_STATS_SOCKET_MODE = re.compile(r"(stats socket \S+ mode )666")
_FRONTEND = "frontend http_frontend"
_UNPRINTABLE = "[^[:print:]]"
_CONTROLS = r"'[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]'"
"""What the ingress's server refuses in plain text."""
_LONGEST_TIMEOUT = 64
"""Characters. The header stands twice for a moment, and must fit into HAProxy's buffer."""
_FRONTEND_RULES = f"""\
    http-request deny deny_status 400 if {{ req.hdrs -m reg {_CONTROLS} }}
    http-request deny deny_status 400 if {{ req.fhdr({TIMEOUT_HEADER}),length gt {_LONGEST_TIMEOUT} }}
    http-request set-header {PASSED_TIMEOUT_HEADER} %[req.fhdr({TIMEOUT_HEADER})] if {{ req.fhdr({TIMEOUT_HEADER}) -m found }}
    http-request del-header {TIMEOUT_HEADER}
    http-request del-header upgrade
    http-request del-header x-request-disconnect-disabled
    http-request deny deny_status 400 if {{ req.fhdr(x-request-id) -m reg {_UNPRINTABLE} }}
    http-request set-header x-session-id %[req.fhdr(x-session-id),bytes(0,256),url_enc] if {{ req.fhdr(x-session-id) -m reg {_UNPRINTABLE} }}
    http-request del-header traceparent if {{ req.fhdr(traceparent) -m reg {_UNPRINTABLE} }}
    http-request del-header tracestate if {{ req.fhdr(tracestate) -m reg {_UNPRINTABLE} }}
    http-request del-header serve_multiplexed_model_id
    http-request del-header serve-multiplexed-model-id
    http-request deny deny_status 405 unless {{ method GET HEAD POST PUT PATCH DELETE OPTIONS }}
"""  # noqa: E501


def amend(configuration: str, host: str, errors: str) -> str:
    """host: where the API listens. errors: lines for `defaults` that say what HAProxy answers itself."""
    return amend_requests(amend_errors(amend_listeners(configuration, host), errors))


def amend_listeners(configuration: str, host: str) -> str:
    """The API on `host`, everything else on loopback, the admin socket its owner's alone, nothing spliced."""
    address = f"[{host}]" if ":" in host else host
    bound = (
        _BIND.sub(rf"\g<1>{address if section.startswith(_FRONTEND) else '127.0.0.1'}:\2", section)
        for section in _sections(_SPLICE.sub("", configuration))
    )
    return _STATS_SOCKET_MODE.sub(r"\g<1>600", "".join(bound))


def amend_errors(configuration: str, rules: str) -> str:
    """What HAProxy answers itself. Where Ray has told it of no application yet, that is a 503 and not a 404."""
    configuration = _NO_APPLICATION.sub(r"\1http-request deny deny_status 503", configuration)
    return "".join(
        _ERROR_FILE.sub("", section.replace(rules, "")).rstrip("\n") + "\n" + rules
        if section.startswith("defaults")
        else section
        for section in _sections(configuration)
    )


def amend_requests(configuration: str) -> str:
    """What becomes of a request before it goes to an ingress. Changes nothing where that is so already."""
    if _FRONTEND_RULES in configuration:
        return configuration
    return "".join(
        _before_backends(section, _FRONTEND_RULES) if section.startswith(_FRONTEND) else section
        for section in _sections(configuration)
    )


def _before_backends(section: str, rules: str) -> str:
    """Of a frontend; where it has no backend yet there is nothing to rule."""
    before, use, after = section.partition("    use_backend ")
    return before + rules + use + after if use else section


def _sections(configuration: str) -> list[str]:
    return re.split(r"(?m)^(?=\S)", configuration)
