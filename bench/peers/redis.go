package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Field of a stream's entry that has the value.
	redisField = "v"
	// Longest wait of one read.
	redisBlock = 60 * time.Second
	// Keys of one step of a list.
	redisScan = 1000
)

type redisPeer struct {
	o           *options
	connections []*redisConnection
	// Each reader that waits has a connection of its own.
	waits *redis.Client
}

type redisConnection struct {
	p      *redisPeer
	client *redis.Client
}

func newRedis() peer { return &redisPeer{} }

func (p *redisPeer) prepare(o *options) error {
	p.o = o
	// Writers that wait for no acknowledgement have several commands under way.
	pool := 1
	if o.readers > 1 || o.rate > 0 && o.connections == 1 {
		pool = 16
	}
	for range o.connections {
		p.connections = append(p.connections, &redisConnection{p, p.open(pool)})
	}
	p.waits = p.open(o.readers + 1)
	return p.connections[0].client.Ping(context.Background()).Err()
}

func (p *redisPeer) open(pool int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: p.o.servers[0], PoolSize: pool, MaxRetries: -1, DialTimeout: time.Minute, ReadTimeout: time.Minute, PoolTimeout: time.Minute,
	})
}

func (p *redisPeer) key(queue string) string { return p.o.stream + ":" + queue }

func (p *redisPeer) joins() bool { return true }

func (p *redisPeer) appender(connection int) appender {
	return p.connections[connection%len(p.connections)]
}

// append sends one pipeline, which with appendfsync=always mostly shares a sync.
func (c *redisConnection) append(queues []string, value []byte, acked func(int)) error {
	ctx := context.Background()
	pipeline := c.client.Pipeline()
	for _, queue := range queues {
		pipeline.XAdd(ctx, &redis.XAddArgs{Stream: c.p.key(queue), Values: []any{redisField, value}})
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		return err
	}
	acked(len(queues))
	return nil
}

func (p *redisPeer) reader(connection int) reader {
	return p.connections[connection%len(p.connections)]
}

func (c *redisConnection) read(queue string, _ uint64, limit int) (int, error) {
	found, err := c.client.XRangeN(context.Background(), c.p.key(queue), "-", "+", int64(limit)).Result()
	return len(found), err
}

func (p *redisPeer) list() (uint64, error) {
	ctx, count, cursor := context.Background(), uint64(0), uint64(0)
	for {
		keys, next, err := p.connections[0].client.Scan(ctx, cursor, p.key("*"), redisScan).Result()
		if err != nil {
			return 0, err
		}
		count += uint64(len(keys))
		if cursor = next; cursor == 0 {
			return count, nil
		}
	}
}

func (p *redisPeer) waiter(_ int, queue string, got func([]byte)) error {
	ctx, last := context.Background(), "$"
	if err := p.waits.Ping(ctx).Err(); err != nil {
		return err
	}
	go func() {
		for {
			found, err := p.waits.XRead(ctx, &redis.XReadArgs{Streams: []string{p.key(queue), last}, Block: redisBlock}).Result()
			if err == redis.Nil {
				continue
			}
			if err != nil {
				return
			}
			for _, message := range found[0].Messages {
				last = message.ID
				value, _ := message.Values[redisField].(string)
				got([]byte(value))
			}
		}
	}()
	return nil
}

func (p *redisPeer) end() (uint64, error) { return 0, errUnsupported }

func (p *redisPeer) close() {
	for _, c := range p.connections {
		c.client.Close()
	}
	if p.waits != nil {
		p.waits.Close()
	}
	p.connections = nil
}
