	s_cmp_gt_i32 s12, 0
	s_cbranch_scc1 .LBB0_3
; %bb.1:
	s_load_b32 s4, s[0:1], 0x4
	s_load_b32 s8, s[2:3], 0x1c
	v_mov_b32_e32 v1, 0
	s_waitcnt lgkmcnt(0)
	s_and_b32 s4, s4, 0xffff
	s_delay_alu instid0(SALU_CYCLE_1)
	s_mul_hi_u32 s11, s15, s4
	s_mul_i32 s10, s15, s4
	s_load_b128 s[4:7], s[2:3], 0x0
	s_and_not1_b32 vcc_lo, exec_lo, s9
	s_cbranch_vccz .LBB0_4
; %bb.2:
	v_mov_b32_e32 v2, s9
	s_branch .LBB0_6
.LBB0_3:
	s_mov_b32 s9, -1
                                        ; implicit-def: $sgpr10_sgpr11
	s_load_b128 s[4:7], s[2:3], 0x0
.LBB0_4:
	s_load_b32 s0, s[0:1], 0x4
	s_load_b32 s8, s[2:3], 0x1c
	s_mov_b32 s9, 0
	v_dual_mov_b32 v1, 0 :: v_dual_lshlrev_b32 v2, 2, v0
	s_waitcnt lgkmcnt(0)
	s_and_b32 s0, s0, 0xffff
	s_delay_alu instid0(SALU_CYCLE_1) | instskip(SKIP_3) | instid1(SALU_CYCLE_1)
	s_mul_hi_u32 s11, s0, s15
	s_mul_i32 s10, s0, s15
	s_lshl_b64 s[0:1], s[8:9], 2
	s_lshl_b64 s[2:3], s[10:11], 2
	s_add_u32 s0, s0, s2
	s_addc_u32 s1, s1, s3
	v_add_co_u32 v3, s0, s0, v2
	s_delay_alu instid0(VALU_DEP_1)
	v_add_co_ci_u32_e64 v4, null, s1, 0, s0
	v_mov_b32_e32 v2, v1
.LBB0_5:                                ; =>This Inner Loop Header: Depth=1
	s_delay_alu instid0(VALU_DEP_3) | instskip(NEXT) | instid1(VALU_DEP_3)
	v_add_co_u32 v5, vcc_lo, s4, v3
	v_add_co_ci_u32_e32 v6, vcc_lo, s5, v4, vcc_lo
	s_load_b32 s0, s[4:5], 0x0
	s_add_i32 s12, s12, -1
	global_load_b32 v5, v[5:6], off
	s_add_u32 s4, s4, 4
	s_addc_u32 s5, s5, 0
	s_cmp_eq_u32 s12, 0
	s_waitcnt vmcnt(0) lgkmcnt(0)
	v_fmac_f32_e32 v2, s0, v5
	s_cbranch_scc0 .LBB0_5
.LBB0_6:
	s_lshl_b64 s[0:1], s[10:11], 2
	v_lshlrev_b64 v[0:1], 2, v[0:1]
	s_waitcnt lgkmcnt(0)
