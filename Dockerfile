# zmqrl with its dependencies, in the versions of constraints.txt (docs/containers.md).
#
#   docker build -t zmqrl .                                                                        torch for CPUs
#   docker build -t zmqrl --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .         torch with CUDA
#   docker build -t zmqrl --build-arg EXTRAS=atari,object,redis .                                  other extras
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=object,onnx,redis
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Any user id works whose group is 0, as of OpenShift: the home belongs to the group.
RUN useradd --uid 1000 --gid 0 --create-home --home-dir /home/zmqrl zmqrl && chmod g=rwx /home/zmqrl

# The dependencies are a layer of their own: a change of the package does not install them again.
WORKDIR /opt/zmqrl
COPY LICENSE README.md constraints.txt pyproject.toml setup.cfg ./
RUN mkdir zmqrl && python3 -m pip install -c constraints.txt --extra-index-url "${TORCH_INDEX}" ".[${EXTRAS}]"
COPY zmqrl zmqrl
RUN python3 -m pip install --no-deps --force-reinstall . && rm -rf build ./*.egg-info

ENV HOME=/home/zmqrl
WORKDIR /home/zmqrl
USER 1000:0
ENTRYPOINT ["zmqrl"]
CMD ["--help"]
