# The image of FencedJob: controller, sidecar and command line in one bundle.
#
#   docker build -t fencedjob .                                      bundles inside the build
#   buildah build --build-arg DIST=prebuilt --build-arg BASE=… .     takes the dist/ of `npm run bundle`: no npm, no registry
#
# BASE: any image with Node.js ≥ 24, found through PATH or at /nodejs/bin/node as in the distroless images.
ARG BUILDER=node:24-slim
ARG BASE=node:24-slim
ARG DIST=built

FROM ${BUILDER} AS built
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY . .
RUN npm run bundle

FROM scratch AS prebuilt
COPY dist/ /src/dist/

FROM ${DIST} AS dist

FROM ${BASE}
COPY --from=dist /src/dist/ /app/
ENV PATH=/nodejs/bin:/usr/local/bin:/usr/bin:/bin
USER 65532:65532
# A small young generation: what passes through a sidecar must not stay in its memory until a larger one has filled up.
ENTRYPOINT ["node", "--max-semi-space-size=1", "/app/fencedjob.js"]
