module fencedjob.dev/e2e/binaries/pause

go 1.26.0
