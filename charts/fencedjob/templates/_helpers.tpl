{{- /* Never NAME-fencedjob: so the account and the role of the FencedJob NAME's pods are called, which are written over whatever is there. */}}
{{- define "fencedjob.name" -}}
{{- $ours := "(-fencedjob)*[-.]*$" }}
{{- $name := regexReplaceAll $ours .Release.Name "" }}
{{- if not (contains "fencedjob" $name) }}{{ $name = printf "fencedjob-%s" $name }}{{ end }}
{{- regexReplaceAll $ours ($name | trunc 50) "" }}
{{- end }}

{{- /* Of what belongs to the cluster: releases of one name, each for its own namespace, stand side by side. */}}
{{- define "fencedjob.clusterName" -}}
{{ include "fencedjob.name" . }}{{ if .Values.watchNamespace }}.{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "fencedjob.selector" -}}
app.kubernetes.io/name: fencedjob
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "fencedjob.labels" -}}
{{ include "fencedjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "fencedjob.electionLease" -}}
{{ include "fencedjob.name" . }}-controller
{{- end }}

{{- define "fencedjob.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
