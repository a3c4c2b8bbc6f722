# The image of FencedJob: controller, sidecar and command line in one bundle, made before by `npm run bundle`.
ARG BASE=gcr.io/distroless/nodejs24-debian12:nonroot
FROM ${BASE}
COPY dist/ /app/
USER 65532:65532
ENTRYPOINT ["/nodejs/bin/node", "/app/fencedjob.js"]
