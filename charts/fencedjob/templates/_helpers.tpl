{{- define "fencedjob.name" -}}
{{- if contains "fencedjob" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-fencedjob" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
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
