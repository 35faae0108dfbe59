{{/* What values.schema.json can not say: rules over more than one value. */}}
{{- define "trunkline.validate" -}}
{{- if and (not .Values.replicas.own.enabled) (not .Values.replicas.external) -}}
{{- fail "at '/replicas': own.enabled is false and external is empty: the gateway would have no replica to send to" -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $i, $replica := .Values.replicas.external -}}
{{- if hasKey $seen (default $replica.url $replica.name) -}}
{{- fail (printf "at '/replicas/external/%d': the name %q is used twice" $i (default $replica.url $replica.name)) -}}
{{- end -}}
{{- $_ := set $seen (default $replica.url $replica.name) true -}}
{{- end -}}
{{- $ports := list .Values.replicas.own.ports.http .Values.replicas.own.ports.events .Values.replicas.own.ports.replay -}}
{{- if ne (len (uniq $ports)) 3 -}}
{{- fail (printf "at '/replicas/own/ports': http, events and replay must differ, got %v" $ports) -}}
{{- end -}}
{{- range $keys := list "apiKeys" "adminToken" -}}
{{- $auth := index $.Values.auth $keys -}}
{{- if and $auth.existingSecret (or $auth.lines $auth.value) -}}
{{- fail (printf "at '/auth/%s': give existingSecret or the value itself, not both" $keys) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The list `replicas` of the gateway's file. Own replicas go by the stable DNS name of their pod, short of the cluster
domain: gateway and replicas share the namespace, so the first search domain resolves it. */}}
{{- define "trunkline.replicaList" -}}
{{- $own := .Values.replicas.own -}}
{{- $name := printf "%s-replica" (include "trunkline.fullname" .) -}}
{{- $list := list -}}
{{- if $own.enabled -}}
{{- range $i := until (int $own.count) -}}
{{- $host := printf "%s-%d.%s" $name $i $name -}}
{{- $list = append $list (dict
      "name" (printf "%s-%d" $name $i)
      "url" (printf "http://%s:%d" $host (int $own.ports.http))
      "events" (printf "tcp://%s:%d" $host (int $own.ports.events))
      "replay" (printf "tcp://%s:%d" $host (int $own.ports.replay))
      "dialect" "trunkline") -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $list .Values.replicas.external) -}}
{{- end -}}

{{/* The gateway's YAML file: `config` with what only the chart knows. */}}
{{- define "trunkline.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- range $limit := list "first_byte_s" "silence_s" -}}
{{- if eq (toString (index $config.limits $limit)) "none" -}}
{{- $_ := set $config.limits $limit nil -}}
{{- end -}}
{{- end -}}
{{- if not $config.tokenizer -}}
{{- $_ := unset $config "tokenizer" -}}
{{- end -}}
{{- if eq (include "trunkline.hasApiKeys" .) "true" -}}
{{- $_ := set $config "api_keys_file" "/etc/trunkline/keys/api-keys" -}}
{{- end -}}
{{- $_ := set $config "listen" (dict "host" "0.0.0.0" "port" 8080 "control_host" "0.0.0.0" "control_port" 8081) -}}
{{- $_ := set $config "replicas" (fromYamlArray (include "trunkline.replicaList" .)) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* "Secret" once an engine's key is part of the gateway's file, else "ConfigMap". */}}
{{- define "trunkline.configKind" -}}
{{- $kind := "ConfigMap" -}}
{{- range .Values.replicas.external -}}
{{- if .api_key -}}{{- $kind = "Secret" -}}{{- end -}}
{{- end -}}
{{- $kind -}}
{{- end -}}

{{- define "trunkline.hasApiKeys" -}}
{{- if or .Values.auth.apiKeys.existingSecret .Values.auth.apiKeys.lines -}}true{{- end -}}
{{- end -}}

{{- define "trunkline.hasAdminToken" -}}
{{- if or .Values.auth.adminToken.existingSecret .Values.auth.adminToken.value -}}true{{- end -}}
{{- end -}}

{{/* Seconds from the order to stop to the kill: out of the endpoints first, then the drain, then some air to end in. */}}
{{- define "trunkline.graceSeconds" -}}
{{- add (int .Values.gateway.preStopSleepSeconds) (int (ceil (default 30 .Values.config.limits.drain_s))) 10 -}}
{{- end -}}
