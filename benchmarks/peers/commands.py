"""How each peer is started for the comparison: one worker, one backend, nothing that it does not need.

Each function gives the command for a port and a backend's root url, and writes the files that it wants into ``folder``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bytepath import bare_command, serve_command
from benchmarks.peers.install import debian_peer, python_peer

Start = Callable[[Path, int, str], Sequence[str]]

_NGINX = """daemon off; master_process off; error_log stderr error; pid {folder}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_max_body_size 32m; client_body_buffer_size 1m; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server {host}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""

_HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  option http-no-delay
frontend clients
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  http-reuse always
  server one {host}
"""


def nginx(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A reverse proxy that looks at nothing."""
    path = folder / "nginx.conf"
    path.write_text(_NGINX.format(folder=folder, port=port, host=_host(backend)))
    return [str(debian_peer("nginx")), "-c", str(path), "-p", str(folder)]


def haproxy(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A reverse proxy that looks at nothing."""
    path = folder / "haproxy.cfg"
    path.write_text(_HAPROXY.format(port=port, host=_host(backend)))
    return [str(debian_peer("haproxy")), "-db", "-q", "-f", str(path)]


def envoy(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A reverse proxy that looks at nothing."""
    kinds = "type.googleapis.com/envoy.extensions.filters"
    host, _, number = _host(backend).partition(":")
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "codec_type": "HTTP1",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kinds}.http.router.v3.Router"}}
        ],
    }
    limits = {"max_connections": 16384, "max_pending_requests": 16384, "max_requests": 16384}
    settings = {
        "static_resources": {
            "listeners": [
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "engine",
                    "type": "STATIC",
                    "circuit_breakers": {"thresholds": [limits]},
                    "load_assignment": {
                        "cluster_name": "engine",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {
                                        "endpoint": {
                                            "address": {"socket_address": {"address": host, "port_value": int(number)}}
                                        }
                                    }
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }
    path = folder / "envoy.yaml"
    path.write_text(json.dumps(settings))
    program = str(python_peer("envoy") / "envoy")
    return [program, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


def vllm_router(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A router that schedules nothing."""
    return [str(python_peer("vllm-router") / "vllm-router"), *router_options(port, backend)]


def sglang_router(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A router that schedules nothing."""
    return [
        str(python_peer("sglang-router") / "python"),
        "-m",
        "sglang_router.launch_router",
        *router_options(port, backend),
    ]


def smg(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A router with its priority scheduler on."""
    priority = ["--priority-scheduler-enabled", "--priority-scheduler-default-max-class", "system"]
    return [str(python_peer("smg") / "smg"), "launch", *router_options(port, backend), *priority]


def litellm(folder: Path, port: int, backend: str) -> Sequence[str]:
    """A proxy with many more features; no database, and no key, which it allows for tests only."""
    model = {"model": "openai/bench", "api_base": f"{backend}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": "bench", "litellm_params": model}],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(settings))
    program = str(python_peer("litellm") / "litellm")
    # It ends a stream that says the same word a hundred times over, as the stub's does.
    return [
        "env",
        "REPEATED_STREAMING_CHUNK_LIMIT=1000000",
        program,
        "--config",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]


def bare(folder: Path, port: int, backend: str) -> Sequence[str]:
    """The least that can be done on tidegate's stack: checks a key, parses the JSON, schedules nothing."""
    return bare_command(port, backend)


def tidegate(folder: Path, port: int, backend: str) -> Sequence[str]:
    """Everything on: key, bands, scheduler, metrics, a log line for each request."""
    return serve_command(folder, port, backend)


PEERS: dict[str, Start] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "smg": smg,
    "litellm": litellm,
    "bare proxy": bare,
    "tidegate": tidegate,
}


def _host(backend: str) -> str:
    return backend.partition("//")[2]


def router_options(port: int, backend: str) -> list[str]:
    """Give the options that routers of this family share."""
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", backend, "--policy", "round_robin"),
        *("--log-level", "error", "--prometheus-port", str(port - 1)),
    ]
