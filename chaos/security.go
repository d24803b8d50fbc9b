package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Security is whom the nodes of a run ask who it is.
type Security string

const (
	Open    Security = "open"    // nobody
	Closed  Security = "closed"  // each other, with TLS, and the clients, for a password
	Rolling Security = "rolling" // in the end each other, after a restart of each with `accept` and one with `tls`
)

var securities = []Security{Open, Closed, Rolling}

const (
	swapsEvery = 10 * time.Second
	// From when all faults are over to when all nodes have gone over to TLS.
	rollsWithin = 60 * time.Second
	// A node looks at its files every five seconds.
	sealedWithin = 20 * time.Second
	// A node that speaks TLS alone closes a connection without it at once; one that hears both waits for longer.
	closesWithin = 2 * time.Second
)

// Login is what clients show where they are asked. There is none where nobody asks.
type Login struct{ User, Password, File string }

// Set before the first client begins: all of a run show the same.
var login *Login

func newLogin(directory string) (*Login, error) {
	l := &Login{User: "chaos", Password: "chaos-secret", File: filepath.Join(directory, "password")}
	return l, os.WriteFile(l.File, []byte(l.Password), 0o600)
}

func (l *Login) options() []kgo.Opt {
	if l == nil {
		return nil
	}
	return []kgo.Opt{kgo.SASL(scram.Auth{User: l.User, Pass: l.Password}.AsSha512Mechanism())}
}

// flags are those of the commands of `duramen`.
func (l *Login) flags() []string {
	if l == nil {
		return nil
	}
	return []string{"--user", l.User, "--password-file", l.File}
}

// words are the last arguments of librdkafka.py.
func (l *Login) words() []string {
	if l == nil {
		return nil
	}
	return []string{l.User, l.Password}
}

// show has a call of the native API say whose it is.
func (l *Login) show(request *http.Request) {
	if l != nil {
		request.SetBasicAuth(l.User, l.Password)
	}
}

// listeners is how a node is told to ask clients for a password, also those of the native API.
func (l *Login) listeners(directory, address string) ([]string, error) {
	users := filepath.Join(directory, "users")
	settings := []string{"listeners=SASL_PLAINTEXT://" + address, "sasl.enabled.mechanisms=SCRAM-SHA-512",
		"super.users=User:" + l.User, "bootstrap.users.file=" + users}
	return settings, os.WriteFile(users, []byte(l.User+":SCRAM-SHA-512:"+l.Password+"\n"), 0o600)
}

// Authority makes the nodes' certificates, and makes them anew every ten seconds. It vouches for nobody else.
type Authority struct {
	binary, directory string
	nodes             []string // names and addresses of each
	stop              chan struct{}
	once              sync.Once
	ended             sync.WaitGroup
	swaps             atomic.Int64
	failed            error
}

func NewAuthority(binary, directory string) (*Authority, error) {
	a := &Authority{binary: binary, directory: filepath.Join(directory, "certificates"), stop: make(chan struct{})}
	for id := 1; id <= nodes; id++ {
		names := []string{fmt.Sprintf("node-%d", id), "127.0.0.1"}
		for from := 1; from <= nodes; from++ {
			if from != id {
				names = append(names, linkIP(from, id))
			}
		}
		a.nodes = append(a.nodes, strings.Join(names, ","))
	}
	return a, a.make(a.directory)
}

func (a *Authority) make(out string) error {
	words := []string{"tls", "init", "--out", out}
	for _, node := range a.nodes {
		words = append(words, "--node", node)
	}
	if said, err := exec.Command(a.binary, words...).CombinedOutput(); err != nil {
		return fmt.Errorf("duramen %v: %w: %s", words, err, said)
	}
	return nil
}

func (a *Authority) file(name string) string { return filepath.Join(a.directory, name) }

// settings tell a node how to speak to others.
func (a *Authority) settings(id int, mode string) []string {
	settings := []string{"node.security=" + mode}
	if mode != "plain" {
		settings = append(settings, "listener.name.nodes.ssl.keystore.location="+a.file(fmt.Sprintf("node-%d.pem", id)),
			"listener.name.nodes.ssl.truststore.location="+a.file("ca.pem"))
	}
	return settings
}

// Swap puts new certificates in the place of all, each at once, until Stop.
func (a *Authority) Swap() {
	a.ended.Add(1)
	go func() {
		defer a.ended.Done()
		for {
			select {
			case <-a.stop:
				return
			case <-time.After(swapsEvery):
			}
			if a.failed = a.swap(); a.failed != nil {
				return
			}
			a.swaps.Add(1)
		}
	}()
}

func (a *Authority) swap() error {
	fresh, err := os.MkdirTemp(a.directory, "fresh-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"ca.pem", "ca-key.pem"} {
		if err := os.Link(a.file(name), filepath.Join(fresh, name)); err != nil {
			return err
		}
	}
	if err := a.make(fresh); err != nil {
		return err
	}
	for id := 1; id <= nodes; id++ {
		name := fmt.Sprintf("node-%d.pem", id)
		if err := os.Rename(filepath.Join(fresh, name), a.file(name)); err != nil {
			return err
		}
	}
	return nil
}

func (a *Authority) Stop() error {
	a.once.Do(func() { close(a.stop) })
	a.ended.Wait()
	return a.failed
}

// Roll takes a cluster over to TLS as docs/security.md has it: each node is restarted with `accept`, and with `tls` once
// nobody speaks without TLS. The restarts are spread over the time of the faults.
func (c *Cluster) Roll(seed int64, length time.Duration) error {
	chance, began := rand.New(rand.NewSource(seed)), time.Now()
	restarts := time.Duration(2*nodes + 2)
	at := length / restarts
	for _, mode := range []string{"accept", "tls"} {
		for _, index := range chance.Perm(nodes) {
			time.Sleep(time.Until(began.Add(at)))
			at += length / restarts
			if err := c.changeOver(c.Nodes[index], mode); err != nil {
				return err
			}
			fmt.Printf("%6.2f s  node %d was restarted with node.security=%s\n", time.Since(began).Seconds(), index+1, mode)
		}
		if err := c.awaitPlain(0, length+rollsWithin-time.Since(began)); err != nil {
			return fmt.Errorf("after the restarts with %s: %w", mode, err)
		}
		fmt.Printf("%6.2f s  no node speaks to another without TLS\n", time.Since(began).Seconds())
	}
	return nil
}

// changeOver restarts a node. It may be down by a fault, and then comes up sooner; not one whose disk is being taken away.
func (c *Cluster) changeOver(node *Node, mode string) error {
	c.wiping.Lock()
	defer c.wiping.Unlock()
	node.mutex.Lock()
	node.mode = mode
	node.mutex.Unlock()
	node.Stop()
	return node.Start()
}

// awaitPlain waits until each node speaks without TLS to so many others.
func (c *Cluster) awaitPlain(others int, longest time.Duration) error {
	for deadline := time.Now().Add(longest); ; time.Sleep(200 * time.Millisecond) {
		err := c.arePlain(others)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (c *Cluster) arePlain(others int) error {
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	words := append([]string{"cluster", "status", "--output", "json", "--bootstrap", strings.Join(c.Bootstrap(), ",")}, login.flags()...)
	// It ends badly while the cluster is not healthy, which is no matter here.
	said, err := exec.CommandContext(patience, c.Authority.binary, words...).Output()
	var told struct {
		Nodes []struct {
			Node    int
			State   string
			PlainTo *[]int `json:"plain_to"`
		}
	}
	if jsonErr := json.Unmarshal(said, &told); jsonErr != nil {
		return fmt.Errorf("duramen cluster status: %w", errors.Join(err, jsonErr))
	}
	if len(told.Nodes) != nodes {
		return fmt.Errorf("duramen cluster status names %d nodes", len(told.Nodes))
	}
	for _, it := range told.Nodes {
		if it.State != "live" {
			return fmt.Errorf("node %d is %s", it.Node, it.State)
		}
		if it.PlainTo == nil {
			return fmt.Errorf("duramen cluster status does not say how node %d speaks to others", it.Node)
		}
		if len(*it.PlainTo) != others {
			return fmt.Errorf("node %d speaks without TLS to %v", it.Node, *it.PlainTo)
		}
	}
	return nil
}

// Sealed is asked when all is over: nodes are to speak TLS, and nothing else, with the newest certificates.
func (c *Cluster) Sealed() (wrong []string) {
	if err := c.Authority.Stop(); err != nil {
		wrong = append(wrong, fmt.Sprintf("certificates could not be swapped: %v", err))
	}
	swaps := c.Authority.swaps.Load()
	if swaps == 0 {
		wrong = append(wrong, "certificates were never swapped, so that was not tested")
	}
	began := time.Now()
	if err := c.awaitPlain(0, sealedWithin); err != nil {
		wrong = append(wrong, fmt.Sprintf("%s after all faults: %v", sealedWithin, err))
	}
	for _, node := range c.Nodes {
		var err error
		for deadline := time.Now().Add(sealedWithin); ; time.Sleep(200 * time.Millisecond) {
			if err = c.Authority.showsNewest(node); err == nil {
				err = hearsNobodyPlain(node)
			}
			if err == nil || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s after all faults: node %d %v", sealedWithin, node.ID, err))
		}
	}
	if len(wrong) == 0 {
		fmt.Printf("certificates were swapped %d times; %s later all nodes showed the newest, and spoke TLS alone\n", swaps,
			time.Since(began).Round(10*time.Millisecond))
	}
	return wrong
}

// showsNewest dials a node as another one does.
func (a *Authority) showsNewest(node *Node) error {
	newest, err := a.certificate(node.ID)
	if err != nil {
		return err
	}
	ours, err := a.certificate(node.ID%nodes + 1)
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(a.file("ca.pem"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{ours}, ServerName: linkIP(node.ID%nodes+1, node.ID)}
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: closesWithin}, "tcp", node.peers, config)
	if err != nil {
		return fmt.Errorf("does not speak TLS: %w", err)
	}
	defer connection.Close()
	if shown := connection.ConnectionState().PeerCertificates[0].Raw; !bytes.Equal(shown, newest.Certificate[0]) {
		return errors.New("shows an earlier certificate")
	}
	return nil
}

func (a *Authority) certificate(id int) (tls.Certificate, error) {
	file := a.file(fmt.Sprintf("node-%d.pem", id))
	return tls.LoadX509KeyPair(file, file)
}

// hearsNobodyPlain begins a connection as a node without TLS does: with a length below 16 MiB.
func hearsNobodyPlain(node *Node) error {
	connection, err := net.DialTimeout("tcp", node.peers, closesWithin)
	if err != nil {
		return err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(closesWithin))
	if _, err := connection.Write([]byte{0}); err != nil {
		return nil
	}
	if _, err := io.ReadAll(connection); errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("hears a node without TLS")
	}
	return nil
}

func readSecurity(name string) (Security, error) {
	if !slices.Contains(securities, Security(name)) {
		return "", fmt.Errorf("--security is one of %v", securities)
	}
	return Security(name), nil
}
