{{/* Labels of every object. Give it a dict with root and, where the object belongs to one, component. */}}
{{- define "slacktide.labels" -}}
{{ include "slacktide.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels that select the pods of a component; they never change over the life of a release. */}}
{{- define "slacktide.selectorLabels" -}}
app.kubernetes.io/name: slacktide
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Components that run, in the order in which they are installed. */}}
{{- define "slacktide.components" -}}
agent predictor
{{- if .Values.scheduler.enabled }} scheduler{{ end }}
{{- if .Values.extender.enabled }} extender{{ end }}
{{- end }}

{{/* Components that serve with a certificate. */}}
{{- define "slacktide.served" -}}
predictor
{{- if .Values.extender.enabled }} extender{{ end }}
{{- if .Values.agent.drills.enabled }} agent{{ end }}
{{- end }}

{{/* Image of a component: repository, then digest or tag. Give it a dict with root and image. */}}
{{- define "slacktide.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Where a pod listens: its own address, so that several pods can share one host. */}}
{{- define "slacktide.ownAddress" -}}
{{- if eq .Values.ipFamily "IPv6" }}[$(POD_IP)]{{ else }}$(POD_IP){{ end -}}
{{- end }}

{{/* Settings of a daemon: those of the operator below those that the chart decides. A dict with given and managed. */}}
{{- define "slacktide.settings" -}}
{{ toYaml (mergeOverwrite (deepCopy .given) .managed) }}
{{- end }}

{{/* Settings that all daemons have. */}}
{{- define "slacktide.commonSettings" -}}
observe:
  log_level: {{ .Values.log.level }}
  log_format: {{ .Values.log.format }}
  {{- with .Values.otel.endpoint }}
  traces: {{ . }}
  traces_percent: {{ $.Values.otel.percent }}
  {{- end }}
resources:
  cpu: {{ .Values.resourceNames.cpu }}
  memory: {{ .Values.resourceNames.memory }}
{{- end }}

{{/* Labels and annotations of a pod. A dict with root, component and config, which is the text of its settings. */}}
{{- define "slacktide.podMetadata" -}}
labels:
  {{- include "slacktide.labels" . | nindent 2 }}
annotations:
  # A pod reads its settings once: new ones make new pods.
  checksum/config: {{ .config | sha256sum }}
  {{- with (index .root.Values .component).podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What the pod specs of all components have in common. A dict with root and component. */}}
{{- define "slacktide.podSpec" -}}
{{- $values := index .root.Values .component -}}
serviceAccountName: slacktide-{{ .component }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The rest of the pod spec of what runs beside, not on, the nodes that it serves. A dict with root and component. */}}
{{- define "slacktide.centralPodSpec" -}}
{{- include "slacktide.podSpec" . }}
priorityClassName: system-cluster-critical
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "slacktide.selectorLabels" . | nindent 8 }}
{{- end }}

{{/* What a container without any right has. */}}
{{- define "slacktide.noRights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Its own address, for the flags. */}}
{{- define "slacktide.podIp" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}

{{/* Probes at the observe port: it answers before the daemon has begun, so a slow start is no failure. */}}
{{- define "slacktide.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* The secret with the certificate of a component. A dict with root and component. */}}
{{- define "slacktide.tlsSecret" -}}
{{- index .root.Values.tls.existingSecrets .component | default (printf "slacktide-%s-tls" .component) -}}
{{- end }}

{{/* Names that the certificate of a component is for, divided by blanks. A dict with root and component. */}}
{{- define "slacktide.dnsNames" -}}
{{- $name := printf "slacktide-%s" .component -}}
{{- $namespace := .root.Release.Namespace -}}
{{ $name }} {{ $name }}.{{ $namespace }} {{ $name }}.{{ $namespace }}.svc {{ $name }}.{{ $namespace }}.svc.cluster.local
{{- end }}

{{/* Pod of the job that drills: its account reads and records, its second token drills and nothing else. */}}
{{- define "slacktide.drillPodSpec" -}}
{{- $drills := .Values.drills -}}
serviceAccountName: slacktide-operator
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: Never
# Time for the node to restore when the job is ended early.
terminationGracePeriodSeconds: 60
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $drills.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $drills.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $drills.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
containers:
  - name: drill
    image: {{ include "slacktide.image" (dict "root" . "image" .Values.image) }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [kubectl-slacktide]
    args:
      - drill
      - run
      - --yes
      - --namespace={{ .Release.Namespace }}
      - --token-file=/var/run/secrets/slacktide-drill/token
      - {{ printf "--selector=%s" $drills.selector | quote }}
      - --pick={{ $drills.pick }}
      - --kind={{ $drills.kind }}
      {{- with $drills.duration }}
      - --duration={{ . }}
      {{- end }}
      - --victims-max={{ $drills.victimsMax }}
      {{- if $drills.dryRun }}
      - --dry-run
      {{- end }}
      {{- if $drills.lastNode }}
      - --last-node
      {{- end }}
      - {{ printf "--reason=%s" $drills.reason | quote }}
    securityContext:
      {{- include "slacktide.noRights" . | nindent 6 }}
    resources:
      {{- toYaml $drills.resources | nindent 6 }}
    volumeMounts:
      - {name: drill-token, mountPath: /var/run/secrets/slacktide-drill, readOnly: true}
volumes:
  - name: drill-token
    projected:
      sources:
        - serviceAccountToken: {audience: slacktide-drill, expirationSeconds: {{ $drills.deadlineSeconds }}, path: token}
{{- end }}
