# fedunlearn with its command line, reports and audits, on the CPU. docs/how-to/container.md shows how to use it.
FROM python:3.11-slim

# The address of an index with CPU builds of torch. Without it, pip takes its default build, which brings CUDA.
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# torch alone, so that a change of the sources does not download it again
WORKDIR /opt/fedunlearn
COPY constraints.txt ./
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt '.[cli,report,evidence]'

RUN useradd --create-home --uid 1000 user
USER user
WORKDIR /home/user

ENTRYPOINT ["fedunlearn"]
CMD ["demo"]
