package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// Longest wait of a node for its answer, and of a client for the node's. One request in ten is of a client without
	// patience, which goes away at any moment of the call.
	nodePatience   = 2500 * time.Millisecond
	nativePatience = 4 * time.Second
	noPatience     = 12 * time.Millisecond
	// Requests of one change, each to another node than the one before.
	attemptsMax = 6
)

// Problems after which the same request may succeed later, at this node or another one. Nothing was done.
var passing = []string{"busy", "throttled", "not-enough-replicas", "disk-full", "damaged", "no-leader"}

// A native client speaks HTTP to the nodes in turn. A node passes a call on to the leader.
type native struct {
	name   string
	topic  string
	nodes  []string
	node   int // index of the one that is asked
	client http.Client
	number int
	c      *Clients
}

func (c *Clients) native(name string, nodes []string) *native {
	dialer := net.Dialer{Timeout: time.Second}
	return &native{name: name, topic: queueTopic, nodes: nodes, node: rand.Intn(len(nodes)), c: c,
		client: http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}}
}

// All that answers may have.
type answer struct {
	First, Last, At, Next *Position
	Duplicate, More       bool
	Version               int64
	Elements              []message
	Partition             int32
	Fence                 *string
	Leases                []leased
	Unsettled             []unsettled
	LockMs                int64 `json:"lock_ms"`
	Type, Detail          string
}

// The kind of a problem, or nothing.
func (a answer) problem() string { return strings.TrimPrefix(a.Type, "/problems/") }

// errUnsent is an error before the request was sent.
var errUnsent = errors.New("the request was not sent")

func (n *native) send(method, path string, headers headers, body any) (told answer, err error) {
	content, err := json.Marshal(body)
	if err != nil {
		return told, err
	}
	if method == http.MethodGet {
		content = nil
	}
	patience := nativePatience
	if method != http.MethodGet && rand.Intn(10) == 0 {
		patience = time.Duration(rand.Int63n(int64(noPatience)))
	}
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	address := "http://" + n.nodes[n.node] + "/v1/topics/" + n.topic + path
	request, err := http.NewRequestWithContext(context, method, address, bytes.NewReader(content))
	if err != nil {
		return told, err
	}
	request.Header.Set("content-type", "application/json")
	login.show(request)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := n.client.Do(request)
	if err != nil {
		var dialled *net.OpError
		if errors.As(err, &dialled) && dialled.Op == "dial" {
			err = errUnsent
		}
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the address
		}
		return told, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return told, err
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return told, fmt.Errorf("status %d, and no JSON: %q", response.StatusCode, text)
	}
	if response.StatusCode != http.StatusOK && told.Type == "" {
		return told, fmt.Errorf("status %d, and no problem: %q", response.StatusCode, text)
	}
	return told, nil
}

type headers = map[string]string

// judge returns what came of one request, its problem, and true if nothing else can come of the same request.
func judge(told answer, err error) (came Outcome, problem string, isOver bool) {
	switch {
	case errors.Is(err, errUnsent):
		return Fail, errUnsent.Error(), false
	case err != nil:
		return Unknown, err.Error(), false
	case told.problem() == "":
		return OK, "", true
	case told.problem() == "outcome-unknown":
		return Unknown, told.problem(), false
	}
	return Fail, told.problem(), !slices.Contains(passing, told.problem())
}

func (n *native) named() string {
	n.number++
	return fmt.Sprintf("%s:%d", n.name, n.number)
}
