"""Sets of values the chart must render: the default, and one for each switch an operator may turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXTERNAL: Mapping[str, Any] = {
    "url": "http://vllm-0.engines:8000",
    "name": "vllm-0",
    "events": "tcp://vllm-0.engines:5557",
    "replay": "tcp://vllm-0.engines:5657",
    "topic": "kv-events",
    "ranks": 2,
}
_UNPOLLED: Mapping[str, Any] = {"url": "http://trt-1:8000", "poll_events": False}
PLACEMENT: Mapping[str, Any] = {
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "pool", "operator": "Equal", "value": "cpu", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}},
                }
            ]
        }
    },
    "priorityClassName": "serving",
    "podAnnotations": {"team": "inference"},
    "podLabels": {"cost-centre": "42"},
    "extraEnv": [
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
}

CASES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "several-gateways": {"gateway": {"replicaCount": 3}},
    "external-only": {"replicas": {"own": {"enabled": False}, "external": [EXTERNAL]}},
    "own-and-external": {"replicas": {"own": {"count": 3}, "external": [EXTERNAL, {"url": "https://engine.example/base"}]}},
    "polled": {
        "replicas": {"external": [{"url": "http://trt:8000", "events": "http://trt:8000", "block_tokens": 64}, _UNPOLLED]}
    },
    "engine-key": {"replicas": {"external": [{**EXTERNAL, "api_key": "engine-key-0123"}]}},
    "secrets-by-reference": {
        "auth": {"apiKeys": {"existingSecret": "clients", "key": "list"}, "adminToken": {"existingSecret": "admin"}}
    },
    "secrets-inline": {
        "auth": {"apiKeys": {"lines": [f"alice:{'0' * 64}", f"bob:{'a1' * 32}"]}, "adminToken": {"value": "0123456789abcdef"}}
    },
    "placement": {"gateway": dict(PLACEMENT), "replicas": {"own": dict(PLACEMENT)}},
    "gpu-and-persistent-cache": {
        "replicas": {
            "own": {
                "model": "/models/llama",
                "gpu": {"count": 1},
                "cache": {"persistent": True, "size": "40Gi", "storageClass": "fast"},
                "extraArgs": ["--dtype", "bfloat16"],
                "drainSeconds": 120,
            }
        }
    },
    "other-ports": {
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"lb": "internal"}},
        "replicas": {"own": {"ports": {"http": 9000, "events": 9557, "replay": 9558}}},
    },
    "images": {
        "imagePullSecrets": [{"name": "registry"}],
        "gateway": {
            "image": {"tag": "main", "pullPolicy": "Always"},
            "cache": {"existingClaim": "tokenizers", "fetchTokenizer": False},
        },
        "replicas": {"own": {"image": {"digest": f"sha256:{'0' * 64}"}}},
    },
    "names": {
        "fullnameOverride": "gate-" + "x" * 50,
        "nameOverride": "edge",
        "serviceAccount": {"create": False, "name": "mine"},
    },
    "limits": {
        "config": {
            "policy": "least_loaded",
            "tokenizer": "",
            "admin_networks": ["10.0.0.0/8", "fd00::/8"],
            "limits": {"silence_s": "none", "first_byte_s": "none", "drain_s": 299.5, "body_bytes": 2**31},
        },
        "gateway": {"preStopSleepSeconds": 15},
    },
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
                "metricRelabelings": [{"action": "drop", "regex": "python_gc_.*", "sourceLabels": ["__name__"]}],
            }
        },
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    },
    "open-network": {
        "networkPolicy": {"enabled": False},
        "gateway": {"podDisruptionBudget": {"enabled": False}, "topologySpread": []},
    },
    "closed-network": {
        "networkPolicy": {"clientsFrom": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
        "replicas": {"own": {"count": 1}},
    },
    "extra-objects": {
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"a": "b"}}],
        "global": {"region": "eu"},
    },
}
