# A base image for trainers in C++, linked by CMake, pkg-config or Bazel: LibTorch for the CPU, and optshard's client
# with its libraries. And on it, as an example, the trainer of docs/quickstart.md. In the root of the repository:
#   docker build -f deploy/docker/trainer.Dockerfile --target optshard-trainer-base -t optshard-trainer-base .
#   docker build -f deploy/docker/trainer.Dockerfile --target optshard-trainer -t optshard-trainer .
# With CUDA there is no trainer yet. RUN_IMAGE is the place for an image that has its run-time libraries; it must be
# one of Debian 12, or newer.
ARG BUILD_IMAGE=debian:12
ARG RUN_IMAGE=scratch

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && ./run setup
RUN bazel build //examples/quickstart:trainer //common/dataplane/gloo:optshard_gloo.so \
      //install:liboptshard_client.so \
 && deploy/docker/make_root.sh /root-of-trainer bazel-bin/examples/quickstart/trainer \
      --libraries-of=bazel-bin/common/dataplane/gloo/optshard_gloo.so \
      --library=bazel-bin/install/liboptshard_client.so \
 && mkdir /example && mv /root-of-trainer/usr/bin/trainer /example/

FROM ${RUN_IMAGE} AS optshard-trainer-base
COPY --from=build /root-of-trainer/ /
ENV LD_LIBRARY_PATH=/usr/lib/optshard
USER 10001:10001

FROM optshard-trainer-base AS optshard-trainer
COPY --from=build /example/ /usr/bin/
ENTRYPOINT ["/usr/bin/trainer"]
