// CoreDNS with the few plugins that a test cluster needs: the full program links every cloud's client.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() {
	dnsserver.Directives = []string{"ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
