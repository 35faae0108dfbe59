{{/* The chart's short name, for the app.kubernetes.io/name label. */}}
{{- define "trunkline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every object's name. 40 characters leave room for "-replica-123" and for the hash Kubernetes adds to a
StatefulSet's name, which becomes a label of at most 63. */}}
{{- define "trunkline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "trunkline.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "trunkline.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trunkline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trunkline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "trunkline.labels" -}}
{{ include "trunkline.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The labels selectors match; they never change in the life of a release. */}}
{{- define "trunkline.selector" -}}
app.kubernetes.io/name: {{ include "trunkline.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* image:tag, or image@digest when one is given. Call with (dict "root" $ "image" .Values.gateway.image). */}}
{{- define "trunkline.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
