package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	protobuf = "application/x-protobuf"
	// Most elements of a page over HTTP.
	pageElements = 1000
)

// duramenPeer is Duramen itself, over HTTP/1.1: for loads that `duramen bench` has not.
type duramenPeer struct {
	o           *options
	connections []*duramenConnection
}

type duramenConnection struct {
	p      *duramenPeer
	client *http.Client
}

func newDuramen() peer { return &duramenPeer{} }

func (p *duramenPeer) prepare(o *options) error {
	p.o = o
	for range o.connections {
		p.connections = append(p.connections, &duramenConnection{p, &http.Client{
			Timeout: time.Minute, Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true},
		}})
	}
	_, err := p.connections[0].call(http.MethodGet, p.place(""), "", nil)
	return err
}

func (p *duramenPeer) place(rest string) string {
	return "http://" + p.o.servers[0] + "/v1/topics/" + p.o.stream + rest
}

func (p *duramenPeer) messages(queue, rest string) string {
	return p.place("/queues/" + url.PathEscape(queue) + "/messages" + rest)
}

// call makes one request; an answer that is a problem is an error.
func (c *duramenConnection) call(method, place, accept string, body []byte) ([]byte, error) {
	request, err := http.NewRequest(method, place, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	answer, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	found, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s", method, answer.Status, found)
	}
	return found, err
}

func (p *duramenPeer) joins() bool { return false }

func (p *duramenPeer) appender(connection int) appender {
	return p.connections[connection%len(p.connections)]
}

func (c *duramenConnection) append(queues []string, value []byte, acked func(int)) error {
	for _, queue := range queues {
		if _, err := c.call(http.MethodPost, c.p.messages(queue, ""), protobuf, value); err != nil {
			return err
		}
		acked(1)
	}
	return nil
}

func (p *duramenPeer) reader(connection int) reader {
	return p.connections[connection%len(p.connections)]
}

func (c *duramenConnection) read(queue string, _ uint64, limit int) (int, error) {
	page, err := c.call(http.MethodGet, c.p.messages(queue, fmt.Sprintf("?limit=%d", limit)), protobuf, nil)
	if err != nil {
		return 0, err
	}
	return elements(page)
}

// elements counts the elements of a RetrieveResponse: its fields of number 1.
func elements(page []byte) (int, error) {
	count := 0
	for len(page) > 0 {
		tag, taken := binary.Uvarint(page)
		if taken <= 0 {
			return 0, io.ErrUnexpectedEOF
		}
		value, more := binary.Uvarint(page[taken:])
		if more <= 0 {
			return 0, io.ErrUnexpectedEOF
		}
		page = page[taken+more:]
		if tag&7 == 2 {
			if uint64(len(page)) < value {
				return 0, io.ErrUnexpectedEOF
			}
			page = page[value:]
		}
		if tag>>3 == 1 {
			count++
		}
	}
	return count, nil
}

// positions tells those of a queue's first elements.
func (c *duramenConnection) positions(queue string, wanted int) ([]string, error) {
	var found []string
	for after := ""; len(found) < wanted; {
		place := fmt.Sprintf("?limit=%d&fields=%s%s", min(wanted-len(found), pageElements), url.QueryEscape(`{"o":"offset"}`), after)
		text, err := c.call(http.MethodGet, c.p.messages(queue, place), "", nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Elements []struct {
				Position string `json:"position"`
			} `json:"elements"`
			Next string `json:"next"`
			More bool   `json:"more"`
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, err
		}
		for _, each := range page.Elements {
			found = append(found, each.Position)
		}
		if !page.More {
			break
		}
		after = "&after=" + page.Next
	}
	return found, nil
}

func (p *duramenPeer) list() (uint64, error) { return 0, errUnsupported }

func (p *duramenPeer) waiter(int, string, func([]byte)) error { return errUnsupported }

func (p *duramenPeer) end() (uint64, error) { return 0, errUnsupported }

func (p *duramenPeer) close() {
	for _, c := range p.connections {
		c.client.CloseIdleConnections()
	}
	p.connections = nil
}

// edit changes one element a call, each element once, in rounds through all queues; or appends as many messages.
func edit(p peer, o *options) (any, error) {
	d, is := p.(*duramenPeer)
	if !is {
		return nil, errUnsupported
	}
	if err := d.prepare(o); err != nil {
		return nil, err
	}
	defer d.close()
	type element struct{ queue, position string }
	var all []element
	each := int(o.messages / o.queues)
	found := make([][]string, o.queues)
	if o.edit != "append" {
		for queue := range found {
			positions, err := d.connections[0].positions(name(uint64(queue)), each)
			if err != nil {
				return nil, err
			}
			if len(positions) < each {
				return nil, fmt.Errorf("%s has %d elements, not %d", name(uint64(queue)), len(positions), each)
			}
			found[queue] = positions
		}
	}
	for number := range each {
		for queue := range found {
			it := element{queue: name(uint64(queue))}
			if o.edit != "append" {
				it.position = "/" + found[queue][number]
			}
			all = append(all, it)
		}
	}
	methods := map[string]string{"append": http.MethodPost, "delete": http.MethodDelete, "replace": http.MethodPut}
	method, known := methods[o.edit]
	if !known {
		return nil, fmt.Errorf("there is no edit %q", o.edit)
	}
	var value []byte
	if o.edit != "delete" {
		value = noise(o.size)
	}
	m := newMeter(0, o.seconds)
	var next, none atomic.Uint64
	var callers sync.WaitGroup
	failures := make(chan error, o.connections)
	for _, connection := range d.connections {
		callers.Go(func() {
			for !m.isOver(time.Now()) {
				number := next.Add(1) - 1
				if number >= uint64(len(all)) {
					return
				}
				begun := time.Now()
				answer, err := connection.call(method, d.messages(all[number].queue, all[number].position), "", value)
				if err != nil {
					failures <- err
					return
				}
				m.done(1, begun)
				if o.edit != "append" && !bytes.Contains(answer, []byte(`"withdrawn":1`)) {
					none.Add(1)
				}
			}
		})
	}
	callers.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return nil, err
	}
	if none.Load() > 0 {
		return nil, errors.New("an edit took no element away")
	}
	return m.finish(uint64(len(all)), o), nil
}
