"""What Ray runs in place of haproxy, to change the configuration that Ray generates and no setting of Ray changes.

- It binds HAProxy's metrics and stats ports on all interfaces. Only the API may listen beyond loopback, and it alone,
  while Ray would bind the HTTP ports of the replicas behind it to the same host.
- Where HAProxy answers itself, it does so in HTML or plain text; the API's clients read JSON (33b).
- Ray ends a request by the header X-Request-Timeout-Seconds itself: a stream breaks off, and the error is plain text.
  The ingress keeps that deadline, so it gets the header under a name that Ray does not know.
- It hands on methods and upgrades that the ingress's server refuses in plain text.
- It asks for splicing. If a body came in a packet of its own and the client leaves before the answer begins, HAProxy
  (2.8.25 at least) then spins and never tells the server (24).
- It knows only the ingresses. With direct streaming requests for text go to the replica that an ingress names
  (`direct/direct_route.lua`), and back to the ingresses where that replica cannot be reached, is full or says nothing.

Ray takes the path of the binary (RAY_SERVE_HAPROXY_BINARY_PATH): this script stands there, changes those lines in
the configuration file, which Ray writes anew before each start, and becomes haproxy under the same pid. It dies with
its manager. Also run where nothing is installed: standard library only.
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

BINARY_VARIABLE = "HAPROXY_LAUNCHER_BINARY"
HOST_VARIABLE = "HAPROXY_LAUNCHER_HOST"
ERRORS_VARIABLE = "HAPROXY_LAUNCHER_ERRORS"
"""Path of the lines for `defaults` that say what HAProxy answers itself."""
DIRECT_VARIABLE = "HAPROXY_LAUNCHER_DIRECT"
"""Path of the Lua script; empty or absent without direct streaming."""
TICKET_HEADER = "x-warmlane-ticket"
TIMEOUT_HEADER = "x-request-timeout-seconds"
PASSED_TIMEOUT_HEADER = "x-warmlane-timeout-seconds"
BUFFER_BYTES = 2**20
"""A request is held in one buffer while an ingress is asked, its ticket is added and, should it come to that, until it
is sent again."""
MAX_DIRECT_BODY_BYTES = BUFFER_BYTES * 3 // 4
_PR_SET_PDEATHSIG = 1
_BIND = re.compile(r"^(\s*bind\s+)\S*:(\d+)", re.MULTILINE)
_SPLICE = re.compile(r"^\s*option splice-\w+\n", re.MULTILINE)
_ERROR_FILE = re.compile(r"^\s*errorfile .*\n", re.MULTILINE)
_NO_APPLICATION = re.compile(r"^(backend default_backend\n\s*)http-request return status 404 .*$", re.MULTILINE)
_STATS_SOCKET_MODE = re.compile(r"(stats socket \S+ mode )666")
_FRONTEND = "frontend http_frontend"
_USED_BACKEND = re.compile(r"^\s*use_backend (\S+) if is_\1\s*$", re.MULTILINE)
_SERVER = re.compile(r"^\s*server (\S+) (\S+):(\d+) check(?!.*\bbackup\b).*$", re.MULTILINE)
_BUFSIZE = re.compile(r"^(\s*tune\.bufsize) \d+", re.MULTILINE)
_FRONTEND_RULES = f"""\
    http-request set-header {PASSED_TIMEOUT_HEADER} %[req.fhdr({TIMEOUT_HEADER})] if {{ req.fhdr({TIMEOUT_HEADER}) -m found }}
    http-request del-header {TIMEOUT_HEADER}
    http-request del-header upgrade
    http-request deny deny_status 405 unless {{ method GET HEAD POST PUT PATCH DELETE OPTIONS }}
"""  # noqa: E501
_TABLE = "local INGRESSES = {}"

Servers = Mapping[str, Sequence[tuple[str, str, str]]]
"""Name, host and port of each ingress, by HAProxy's name of the application."""


def amend(configuration: str, host: str) -> str:
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


def ingress_servers(configuration: str) -> Servers:
    """The ingresses that Ray knows now, of each application that has any."""
    frontend = "".join(section for section in _sections(configuration) if section.startswith(_FRONTEND))
    found = {}
    for name in _USED_BACKEND.findall(frontend):
        section = next((s for s in _sections(configuration) if s.startswith(f"backend {name}\n")), "")
        if servers := _SERVER.findall(section):
            found[name] = servers
    return found


def amend_direct(configuration: str, servers: Servers, lua_path: Path) -> str:
    """Requests for text take the way that the Lua script finds. Changes nothing where that is so already."""
    if not servers or str(lua_path) in configuration:
        return configuration
    sections = []
    for section in _sections(configuration):
        if section.startswith("global"):
            section = _BUFSIZE.sub("", section).rstrip("\n")
            section += f"\n    tune.bufsize {BUFFER_BYTES}\n    lua-load-per-thread {lua_path}\n"
        elif section.startswith(_FRONTEND):
            section = _before_backends(section, _direct_rules(servers))
        sections.append(section)
    return "".join(sections).rstrip("\n") + "\n" + "".join(_direct_backend(*item) for item in servers.items())


def filled_in(script: str, servers: Servers) -> str:
    """The Lua script with the ingresses that it may ask."""
    tables = (
        f'["{name}"] = {{ ' + ", ".join(f'{{ "{host}", {port} }}' for _, host, port in each) + " }"
        for name, each in servers.items()
    )
    return script.replace(_TABLE, f"local INGRESSES = {{ {', '.join(tables)} }}", 1)


def _direct_rules(servers: Servers) -> str:
    """No client reaches the paths that the script asks, or brings a ticket of its own."""
    rules = f"""\
    acl warmlane_text path_end /v1/chat/completions /v1/completions /health/direct
    http-request deny deny_status 404 if {{ path_end /v1/chat/completions/route /v1/completions/route /direct/route }}
    http-request del-header {TICKET_HEADER}
    http-request wait-for-body time 5s if METH_POST warmlane_text {{ req.hdr_val(content-length) le {MAX_DIRECT_BODY_BYTES} }}
"""  # noqa: E501
    for name in servers:
        rules += f"    http-request lua.warmlane_direct {name} if METH_POST warmlane_text is_{name}\n"
    rules += f"""\
    acl warmlane_direct var(txn.warmlane_host) -m found
    http-request set-header {TICKET_HEADER} %[var(txn.warmlane_ticket)] if {{ var(txn.warmlane_ticket) -m found }}
    http-request set-dst var(txn.warmlane_host) if warmlane_direct
    http-request set-dst-port var(txn.warmlane_port) if warmlane_direct
"""
    for name in servers:
        rules += f"    use_backend {name}-direct if is_{name} warmlane_direct\n"
    return rules


def _direct_backend(name: str, servers: Sequence[tuple[str, str, str]]) -> str:
    """First the address that was set; whatever fails there before a byte came goes to an ingress. Weight 0 keeps the
    first one from being chosen again."""
    lines = [
        f"backend {name}-direct",
        "    http-reuse always",
        "    option redispatch 1",
        "    retry-on conn-failure empty-response 503",
        "    server direct 0.0.0.0:0 weight 0",
        "    use-server direct if TRUE",
        *(f"    server {server} {host}:{port} track {name}/{server}" for server, host, port in servers),
    ]
    return "\n".join(lines) + "\n"


def _before_backends(section: str, rules: str) -> str:
    """Of a frontend; where it has no backend yet there is nothing to rule."""
    before, use, after = section.partition("    use_backend ")
    return before + rules + use + after if use else section


def _sections(configuration: str) -> list[str]:
    return re.split(r"(?m)^(?=\S)", configuration)


def _amend_files(path: Path, environment: Mapping[str, str]) -> None:
    configuration = amend(path.read_text(), environment[HOST_VARIABLE])
    configuration = amend_errors(configuration, Path(environment[ERRORS_VARIABLE]).read_text())
    configuration = amend_requests(configuration)
    script = environment.get(DIRECT_VARIABLE)
    if script:
        lua_path = path.with_name("direct_route.lua")
        if servers := ingress_servers(configuration):
            lua_path.write_text(filled_in(Path(script).read_text(), servers))
        configuration = amend_direct(configuration, servers, lua_path)
    path.write_text(configuration)


def main() -> None:
    arguments = sys.argv[1:]
    if "-f" in arguments:
        _amend_files(Path(arguments[arguments.index("-f") + 1]), os.environ)
    # Ray stops HAProxy itself; this is for a manager that was killed, which would leave it holding the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    binary = os.environ[BINARY_VARIABLE]
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
