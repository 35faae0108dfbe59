{{/* Security of every pod: passes the "restricted" Pod Security level. */}}
{{- define "trunkline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "trunkline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}

{{/* The two places a container may write to. */}}
{{- define "trunkline.environment" -}}
- name: TRUNKLINE_CACHE
  value: /cache
- name: HOME
  value: /tmp
{{- end -}}

{{/* Where a pod may run. Call with (dict "root" $ "component" "gateway" "part" .Values.gateway). */}}
{{- define "trunkline.placement" -}}
{{- with .part.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "trunkline.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* A PodDisruptionBudget that lets one pod go at a time; none for a single pod, whose node it would block for ever. */}}
{{- define "trunkline.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- include "trunkline.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "trunkline.selector" . | nindent 6 }}
{{- end -}}
