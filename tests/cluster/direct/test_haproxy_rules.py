"""What the launcher makes of Ray's configuration where requests go direct."""

from pathlib import Path

from cluster import haproxy_launcher
from cluster.haproxy_launcher import amend_direct, filled_in, ingress_servers

LUA = Path("/x/direct_route.lua")
CONFIGURATION = """global
    maxconn 20000
    tune.bufsize 16384
defaults
    mode http
frontend http_frontend
    bind 127.0.0.1:8000
    acl is_http-one path_beg /one/
    acl is_http-one path /one
    acl is_http-app path_beg /
    acl is_http-app path /
    # Static routing based on path prefixes in decreasing length then alphabetical order
    use_backend http-one if is_http-one
    use_backend http-app if is_http-app
    default_backend default_backend
backend default_backend
    http-request return status 404
backend http-one
    server fallback 127.0.0.1:8500 check backup
backend http-app
    default-server fastinter 250ms inter 5s check
    # Servers in this backend
    server a-1 127.0.0.1:21000 check observe layer4 error-limit 10 on-error mark-down
    server a-2 127.0.0.1:21001 check
    # Fallback to head node's Serve proxy when no ingress replicas are available
    server fallback 127.0.0.1:8500 check backup
listen stats
  bind *:8404
"""


def test_the_ingresses_of_each_application_are_found_without_the_fallback() -> None:
    assert ingress_servers(CONFIGURATION) == {
        "http-app": [("a-1", "127.0.0.1", "21000"), ("a-2", "127.0.0.1", "21001")]
    }


def test_rules_stand_before_those_that_choose_a_backend() -> None:
    servers = ingress_servers(CONFIGURATION)
    amended = amend_direct(CONFIGURATION, servers, LUA)
    lines = [line.strip() for line in amended.splitlines()]
    assert f"lua-load-per-thread {LUA}" in lines[: lines.index("defaults")]
    assert [line for line in lines if line.startswith("tune.bufsize")] == ["tune.bufsize 1048576"]
    order = [
        "acl is_http-app path /",
        "http-request del-header x-warmlane-ticket",
        "http-request lua.warmlane_direct http-app if METH_POST warmlane_text is_http-app",
        "use_backend http-app-direct if is_http-app warmlane_direct",
        "use_backend http-one if is_http-one",
    ]
    assert sorted(order, key=lines.index) == order
    direct = lines[lines.index("backend http-app-direct") :]
    assert "server direct 0.0.0.0:0 weight 0" in direct
    assert "server a-2 127.0.0.1:21001 track http-app/a-2" in direct
    assert amend_direct(amended, servers, LUA) == amended  # Ray may start it twice on one file


def test_without_ingresses_nothing_is_changed() -> None:
    """At the start, when Ray has told HAProxy of none yet."""
    configuration = CONFIGURATION.replace("server a-1", "# ").replace("server a-2", "# ")
    assert amend_direct(configuration, ingress_servers(configuration), LUA) == configuration


def test_the_script_gets_the_ingresses_that_it_may_ask() -> None:
    script = (Path(haproxy_launcher.__file__).parent / "direct/direct_route.lua").read_text()
    filled = filled_in(script, ingress_servers(CONFIGURATION))
    assert '["http-app"] = { { "127.0.0.1", 21000 }, { "127.0.0.1", 21001 } }' in filled
    assert "local INGRESSES = {}" not in filled
