"""An operator's kv_load_failure_policy=fail that shall stay: a request whose
load fails ends with an error, others go on. (Without the variable it is
computed: test_faults_*.py.)"""
import rig

IDS = rig.prompt("policy", 1300)


def test_kept(version, tmp_path):
    with rig.node(tmp_path) as node:
        given = dict(rig.transfer(node.url()), kv_load_failure_policy="fail")
        with rig.engine(version, "dense", kv_transfer_config=given,
                        env={"VLLM_LARDER_KEEP_POLICY": "1"}) as engine:
            cold = engine.ask_one(IDS)
            assert any("failure_policy=fail is kept" in line
                       for line in engine.larder_lines())
            rig.fresh(engine)
            engine.ask("inside", "failing_loads")
            [answer] = engine.generate([IDS])
            assert answer["error"] == "error", answer
            rig.check_same(engine.ask_one(IDS, kv_transfer_params={
                "larder": {"skip_load": True}}), cold)
