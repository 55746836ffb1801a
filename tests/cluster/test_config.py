"""One dataclass, three sources, the same names, and refusals that say what is wrong."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ServeConfig
from cluster.setting_sources import format_bytes, parse_bytes


def load(tmp_path: Path, yaml: str = "", environment: dict[str, str] | None = None, **flags: object) -> ServeConfig:
    file = tmp_path / "config.yaml"
    file.write_text(yaml)
    return ServeConfig.load(flags, file, environment or {})


def test_defaults_serve_the_default_model_on_loopback() -> None:
    config = ServeConfig.load({}, environment={})
    assert (config.model, config.replicas, config.host, config.gpus_per_replica) == (
        "SmolLM2-135M-Instruct",
        2,
        "127.0.0.1",
        0,
    )
    assert config.model_name == "SmolLM2-135M-Instruct"


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "port: 1\nreplicas: 3\nnum-ingress: 4\n",
        {"WARMLANE_PORT": "2", "WARMLANE_REPLICAS": "5", "PATH": "/bin"},
        port="9",
    )
    assert (config.port, config.replicas, config.num_ingress, config.max_num_seqs) == (9, 5, 4, 64)


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("served_model_name: tiny\n")
    assert ServeConfig.load({}, None, {"WARMLANE_CONFIG": str(file)}).model_name == "tiny"


@pytest.mark.parametrize("name", [item.name for item in fields(ServeConfig)])
def test_every_field_has_the_same_name_in_all_sources(tmp_path: Path, name: str) -> None:
    text = {
        "gpus_per_replica": "1",
        "policy": "lmetric",
        "policy_weights": "work=1.5",
        "kv_memory": "2GiB",
        "host_kv_memory": "3GiB",
        "eviction": "adaptive",
        "disk_kv_folder": "/var/pages",
        "disk_kv_size": "5GB",
        "disk_kv_write_rate": "20MB",
        "pull_rate": "1GB",
        "max_body_bytes": "4MiB",
        "dtype": "float32",
        "deterministic": "yes",
        "pull": "yes",
        "ignore_generation_config": "yes",
        "transport": "handle",
        "redis_url": "redis://127.0.0.1:1",
        "page_size": "64",
        "max_num_batched_tokens": "777",
        "num_ingress": "7",
        "secret": "ab" * 16,
        "replica_api_key": "k" * 16,
        "cors_origins": "https://chat.example",
    }.get(name, "77")
    by_flag = load(tmp_path, **{name: text})
    by_variable = load(tmp_path, environment={f"WARMLANE_{name.upper()}": text})
    by_file = load(tmp_path, f"{name}: {text}\n")
    assert by_flag == by_variable == by_file != ServeConfig()


@pytest.mark.parametrize(
    ("yaml", "environment", "flags", "message"),
    [
        ("replica: 3\n", {}, {}, r"unknown setting replica in .*config\.yaml; did you mean replicas\?$"),
        ("num-ingresses: 3\n", {}, {}, r"unknown setting num-ingresses in .*; did you mean num_ingress\?$"),
        (
            "",
            {"WARMLANE_REPLICA": "3"},
            {},
            r"unknown variable WARMLANE_REPLICA in the environment; did you mean WARMLANE_REPLICAS\?$",
        ),
        ("", {"WARMLANE_bogus": "1"}, {}, r"variable WARMLANE_bogus in .*known are WARMLANE_MODEL, WARMLANE_SERVED"),
        ("", {}, {"replica": 3}, r"unknown setting replica in the command line; did you mean replicas\?$"),
        ("1: 2\n", {}, {}, r"unknown setting 1 in .*known are model, served_model_name"),
    ],
)
def test_unknown_names_are_refused_in_every_source_as_they_were_written(
    tmp_path: Path, yaml: str, environment: dict[str, str], flags: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, yaml, environment, **flags)


@pytest.mark.parametrize("name", ["secre", "bogus", "WARMLANE_SECRETS"])
def test_no_message_proposes_what_must_not_stand_on_a_command_line(tmp_path: Path, name: str) -> None:
    for source in ({"yaml": f"{name}: 1"}, {"environment": {f"WARMLANE_{name}": "1"}}, {name: 1}):
        with pytest.raises(ValueError) as caught:
            load(tmp_path, **source)  # type: ignore[arg-type]
        _, _, proposed = str(caught.value).partition(";")
        assert proposed
        assert "secret" not in proposed.lower()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replicas", 0, "replicas must be between 1 and 1024, got 0"),
        ("replicas", "two", "replicas must be a whole number, got 'two'"),
        ("replicas", 1.5, "replicas must be a whole number, got 1.5"),
        ("replicas", True, "replicas must be a whole number, got True"),
        ("replicas", None, "replicas must not be null"),
        ("port", 70000, "port must be between 1 and 65535, got 70000"),
        ("gpus_per_replica", 2, "gpus_per_replica must be 0 or 1 for now, got 2"),
        ("gpus_per_replica", -1, "gpus_per_replica must be at least 0, got -1"),
        ("block_size", 0, "block_size must be between 1 and 1024, got 0"),
        ("num_blocks", 1, "num_blocks must be at least 2, got 1"),
        ("kv_memory", "lots", "kv_memory must be a size such as 2GiB or 500MB, got 'lots'"),
        ("kv_memory", 0, "kv_memory must be at least 1, got 0"),
        ("deterministic", "perhaps", "deterministic must be true or false, got 'perhaps'"),
        ("dtype", "int3", "dtype must be auto, float32, float16 or bfloat16, got 'int3'"),
        ("model", "", "model must not be empty"),
        ("model", ["a"], "model must be one text, got ['a']"),
        ("page_size", 24, "page_size must be a multiple of block_size (16), got 24"),
        ("page_size", 0, "page_size must be at least 1, got 0"),
        ("policy_weights", "a", "policy_weights must be name=value,name=value, got 'a'"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_bound(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ServeConfig.load({name: value}, environment={})
    assert str(caught.value) == message


def test_an_unknown_policy_or_weight_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="policy lmetric has no weight 'speed'"):
        ServeConfig.load({"policy": "lmetric", "policy_weights": "speed=1"}, environment={})


def test_a_pool_must_hold_a_page() -> None:
    with pytest.raises(ValueError, match="num_blocks must fill a page of 64 tokens, got 3 blocks"):
        ServeConfig(page_size=64, num_blocks=3)
    assert ServeConfig(page_size=64, num_blocks=4).num_blocks == 4


@pytest.mark.parametrize("other", [{"dtype": "bfloat16"}, {"gpus_per_replica": 1}])
def test_deterministic_needs_float32_on_cpus(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="deterministic needs float32 on CPUs, got"):
        ServeConfig(deterministic=True, **other)
    assert ServeConfig(deterministic=True).engine("model").deterministic


def test_a_step_must_hold_one_token_of_each_running_request() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(8\) must not be below max_num_seqs \(16\)"):
        ServeConfig(max_num_seqs=16, max_num_batched_tokens=8)


@pytest.mark.parametrize("key", ["", "k" * 15, "k" * 257, "k" * 15 + " ", "ключ" * 8])
def test_a_replica_api_key_is_long_enough_and_fits_a_header(key: str) -> None:
    with pytest.raises(ValueError, match="replica_api_key must be 16 to 256 printable ASCII characters") as caught:
        ServeConfig(replica_api_key=key)
    assert not key or key not in str(caught.value)


def test_keys_do_not_show_where_a_configuration_is_printed() -> None:
    config = ServeConfig(replica_api_key="k" * 16, secret="ab" * 16)
    assert "kkkk" not in repr(config)
    assert "abab" not in repr(config)


def test_51_a_key_of_the_replicas_does_not_stand_beside_tenants() -> None:
    with pytest.raises(ValueError, match="replica_api_key cannot be used together with api_keys_file"):
        ServeConfig(replica_api_key="k" * 16, api_keys_file="keys.yaml")


@pytest.mark.parametrize("origin", ["", "chat.example", "https://chat.example/", "https://a,,https://b", "https://A.b"])
def test_an_origin_is_what_a_browser_sends(origin: str) -> None:
    with pytest.raises(ValueError, match="cors_origins must"):
        ServeConfig(cors_origins=origin)


def test_origins_are_read_one_by_one() -> None:
    origins = "https://chat.example, http://localhost:3000,chrome-extension://abc,http://[::1]:3000"
    assert ServeConfig(cors_origins=origins).origins == tuple(part.strip() for part in origins.split(","))
    assert (ServeConfig(cors_origins="*").origins, ServeConfig().origins) == (("*",), ())


def test_direct_streaming_is_gone_and_the_error_names_what_is_there() -> None:
    with pytest.raises(ValueError, match="transport must be one of auto, side_channel, handle, got 'direct'"):
        ServeConfig(transport="direct")


@pytest.mark.parametrize("content", ["- a\n- b\n", "just text", "a: [1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"config\.yaml"):
        load(tmp_path, content)


def test_the_engine_gets_what_was_set() -> None:
    kv_memory = parse_bytes("kv_memory", "1MiB")
    config = ServeConfig(kv_memory=kv_memory, gpus_per_replica=1, threads_per_replica=3, page_size=64)
    engine = config.engine("/models/x")
    assert (engine.block_size, engine.page_size) == (16, 64)
    assert (engine.model, engine.device, engine.kv_memory_bytes, engine.threads) == ("/models/x", "cuda", 1 << 20, 3)
    # Not of the machine that reads the settings: each replica looks at its own node (`replica/node_share.py`).
    on_cpus = ServeConfig(replicas=8).engine("/models/x")
    assert (on_cpus.threads, on_cpus.memory_fraction) == (None, 0.5)


@pytest.mark.parametrize(
    ("text", "count"),
    [("17", 17), (17, 17), ("2GiB", 2 << 30), ("2 gib", 2 << 30), ("2Gi", 2 << 30), ("2GB", 2 * 10**9), ("1.5k", 1500)],
)
def test_sizes_as_people_write_them(text: str | int, count: int) -> None:
    assert parse_bytes("kv_memory", text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1XB", "1i", "1e3", True])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="kv_memory"):
        parse_bytes("kv_memory", text)


def test_sizes_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3 GiB",
        "5 TiB",
    ]
